"""Events as five kinds of services write them, from a seed: lines as bytes, and the same events as rows.

Users, pages, devices and words follow Zipf's law, and sessions make neighbours alike, as in real streams. Ids are
random and times grow. A level of compression that wins on these should win on a service's own events of the same kind.
"""

from __future__ import annotations

import json
from bisect import bisect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TEXT, _WHOLE, _REAL, _TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TIME = pa.timestamp("us", "UTC")
_START = datetime(2026, 11, 2, 6, tzinfo=UTC)
_SESSIONS = 3000
_DEVICES = 4000
_ROWS_A_CALL = 1000
_STARTS = "th s t w h b c f m p d r l n st pr tr ch sh gr pl v g br cl sp"
_MIDDLES = "e a i o u ea ou ai ee oo io ie"
_ENDS = "n r t s d l nd st ng m ck nt ll ct ss p rt"
_COUNTRIES = "US DE GB FR IN BR JP CA ES IT NL PL MX AU SE"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Events of one kind, in calls of a thousand."""

    name: str
    lines: list[list[bytes]]
    rows: list[pa.Table]
    size: int
    """Bytes of all lines."""

    @property
    def count(self) -> int:
        return sum(map(len, self.lines))


def make_corpora(size: int) -> Iterator[Corpus]:
    """Yield the corpora, each with about `size` bytes of lines, the same ones every time."""
    for name, (schema, make) in _KINDS.items():
        lines, rows, total = [], [], 0
        for line, row in make(Random(26)):
            lines.append(line)
            rows.append(row)
            total += len(line)
            if total >= size:
                break
        starts = range(0, len(lines), _ROWS_A_CALL)
        yield Corpus(
            name,
            [lines[at : at + _ROWS_A_CALL] for at in starts],
            [pa.Table.from_pylist(rows[at : at + _ROWS_A_CALL], schema) for at in starts],
            total,
        )


class _Zipf(Generic[T]):
    """Picks the values in front far more often than those at the end."""

    def __init__(self, random: Random, values: Sequence[T], exponent: float = 1.0) -> None:
        self._random, self._values = random, values
        self._ends = list(accumulate((rank + 1) ** -exponent for rank in range(len(values))))

    def pick(self) -> T:
        return self._values[bisect(self._ends, self._random.random() * self._ends[-1])]


def _times(random: Random, per_second: float) -> Iterator[datetime]:
    now = _START
    while True:
        now += timedelta(seconds=random.expovariate(per_second))
        yield now


def _uuid(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128), version=4))


def _to_json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":"), default=lambda time: time.isoformat(timespec="milliseconds")).encode()


def _words(random: Random, count: int) -> list[str]:
    """Return words of English syllables, the frequent ones short, none twice."""
    starts, middles, ends = _STARTS.split(), _MIDDLES.split(), ["", *_ENDS.split()]
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = 1 + (len(found) > 60) * (random.random() < 0.75) + (len(found) > 800) * (random.random() < 0.5)
        word = "".join(random.choice(starts) + random.choice(middles) for _ in range(syllables))
        found[word + random.choice(ends)] = None
    return list(found)


class _Prose:
    """Sentences in which a word is mostly followed by one of its usual successors, as in a language."""

    def __init__(self, random: Random) -> None:
        self._random = random
        words = _words(random, 12_000)
        self._any = _Zipf(random, words)
        self._next = {word: _Zipf(random, [self._any.pick() for _ in range(60)], 0.9) for word in words}

    def write(self, length: int) -> str:
        sentences = []
        while length > 0:
            word = self._any.pick()
            said = [word.capitalize()]
            for _ in range(self._random.randrange(4, 22)):
                word = self._next[word].pick() if self._random.random() < 0.8 else self._any.pick()
                said.append(f"{word}," if self._random.random() < 0.05 else word)
            sentences.append(f"{' '.join(said)}{self._random.choice('......?!')}")
            length -= len(sentences[-1]) + 1
        return " ".join(sentences)


# The web


def _agents(random: Random) -> list[str]:
    systems = [
        "Windows NT 10.0; Win64; x64",
        "Macintosh; Intel Mac OS X 10_15_7",
        "X11; Linux x86_64",
        *(f"Linux; Android {version}; {model}" for version in (15, 14, 13) for model in ("K", "SM-S928B", "Pixel 9")),
    ]
    chrome = [
        f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{major}.0.0.0 {tail}"
        for system in systems
        for major in range(142, 130, -1)
        for tail in ("Safari/537.36", f"Mobile Safari/537.36 Edg/{major}.0.{random.randrange(3000)}.{major}")
    ]
    safari = [
        f"Mozilla/5.0 (iPhone; CPU iPhone OS {major}_{minor} like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
        f"Version/{major}.{minor} Mobile/15E148 Safari/604.1"
        for major in (26, 18, 17)
        for minor in range(7)
    ]
    agents = [*chrome, *safari]
    random.shuffle(agents)
    return agents


def _pages(random: Random) -> list[str]:
    words = _words(random, 900)
    kinds = ("products", "products", "products", "category", "blog", "help")
    return ["/"] + [
        f"/{random.choice(kinds)}/{'-'.join(random.choices(words, k=random.randrange(1, 5)))}-{random.randrange(10**5)}"
        for _ in range(8000)
    ]


@dataclass(slots=True)
class _Session:
    user: int
    id: str
    address: str
    agent: str
    country: str
    page: str


class _Visitors:
    """Sessions that come and go: each event is one more step of one of them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._users = _Zipf(random, range(1_000_000, 1_200_000), 0.9)
        self._agents = _Zipf(random, _agents(random))
        self._countries = _Zipf(random, _COUNTRIES.split())
        self.pages = _Zipf(random, _pages(random), 1.1)
        self._now = [self._begin() for _ in range(_SESSIONS)]

    def _begin(self) -> _Session:
        random, user = self._random, self._users.pick()
        own = Random(user)  # what a user keeps from one session to the next
        address = f"{own.randrange(11, 224)}.{own.randrange(256)}.{own.randrange(256)}.{own.randrange(256)}"
        referrer = random.choice(["", "", "https://www.google.com/", "https://t.co/", "https://news.example.org/"])
        return _Session(user, _uuid(random), address, self._agents.pick(), self._countries.pick(), referrer)

    def step(self) -> tuple[_Session, str, str]:
        """A session, the page that it opens, and the one that it comes from."""
        at = min(int(self._random.expovariate(4 / _SESSIONS)), _SESSIONS - 1)  # some are busier than others
        session = self._now[at]
        before, session.page = session.page, f"https://shop.example.com{self.pages.pick()}"
        if self._random.random() < 0.12:
            self._now[at] = self._begin()
        return session, session.page, before


def _clicks(random: Random) -> Iterator[tuple[bytes, dict[str, Any]]]:
    visitors = _Visitors(random)
    kinds = _Zipf(random, ["page_view", "click", "scroll", "add_to_cart", "search", "purchase"])
    for time in _times(random, 400):
        session, page, before = visitors.step()
        row = {
            "event_id": _uuid(random),
            "ts": time,
            "type": kinds.pick(),
            "user_id": session.user,
            "session_id": session.id,
            "url": page,
            "referrer": before,
            "user_agent": session.agent,
            "ip": session.address,
            "country": session.country,
            "load_ms": int(random.lognormvariate(6.2, 0.7)),
        }
        yield _to_json(row), row


def _nginx(random: Random) -> Iterator[tuple[bytes, dict[str, Any]]]:
    visitors = _Visitors(random)
    assets = _Zipf(random, [f"/static/{name}.{random.getrandbits(32):08x}.js" for name in _words(random, 60)])
    status = _Zipf(random, [200, 304, 404, 301, 206, 499, 500, 502], 2.0)
    for time in _times(random, 900):
        session, page, before = visitors.step()
        path = page.removeprefix("https://shop.example.com")
        if random.random() < 0.5:
            path, before = assets.pick(), page
        row = {
            "ip": session.address,
            "ts": time.replace(microsecond=0),
            "method": "POST" if random.random() < 0.06 else "GET",
            "path": path,
            "status": status.pick(),
            "bytes": int(random.lognormvariate(8.5, 1.3)),
            "referrer": before or "-",
            "agent": session.agent,
            "seconds": round(random.lognormvariate(-4, 1.2), 3),
        }
        line = (
            f'{row["ip"]} - - [{time:%d/%b/%Y:%H:%M:%S +0000}] "{row["method"]} {path} HTTP/1.1" {row["status"]} '
            f'{row["bytes"]} "{row["referrer"]}" "{session.agent}" {row["seconds"]:.3f}'
        )
        yield line.encode(), row


# Audit, measurements, text

_CALLS = (
    "s3 GetObject,sts AssumeRole,ec2 DescribeInstances,kms Decrypt,s3 PutObject,logs PutLogEvents,s3 ListObjects,"
    "dynamodb GetItem,ecr BatchGetImage,sqs ReceiveMessage,ec2 DescribeVolumes,lambda Invoke,iam GetRole,"
    "secretsmanager GetSecretValue,eks DescribeCluster,ssm GetParameter,autoscaling DescribeAutoScalingGroups,"
    "ec2 RunInstances,iam ListRoles,cloudformation DescribeStacks,rds DescribeDBInstances,ec2 TerminateInstances"
)


def _audit(random: Random) -> Iterator[tuple[bytes, dict[str, Any]]]:
    words = _words(random, 400)
    accounts = _Zipf(random, [f"{random.randrange(10**11, 10**12)}" for _ in range(12)])
    roles = _Zipf(random, [f"{random.choice(words)}-{random.choice(words)}-role" for _ in range(250)])
    calls = _Zipf(random, [call.split() for call in _CALLS.split(",")])
    buckets = _Zipf(random, [f"{random.choice(words)}-{random.choice(words)}-prod" for _ in range(120)])
    regions = _Zipf(random, ["us-east-1", "eu-central-1", "us-west-2", "ap-southeast-1"], 1.3)
    agents = _Zipf(
        random, [f"aws-sdk-{kind}/2.{n}.{random.randrange(30)}" for n in range(12) for kind in ("java", "go")]
    )
    keys: dict[str, tuple[str, str]] = {}
    for time in _times(random, 150):
        role, account, (service, name), region = roles.pick(), accounts.pick(), calls.pick(), regions.pick()
        if role not in keys or random.random() < 0.01:
            letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
            keys[role] = (f"ASIA{''.join(random.choices(letters, k=16))}", f"i-{random.getrandbits(64):017x}")
        key, session = keys[role]
        parameters = {"bucketName": buckets.pick(), "key": f"{time:%Y/%m/%d}/{random.getrandbits(64):016x}.gz"}
        if service != "s3":
            parameters = {"roleArn": f"arn:aws:iam::{account}:role/{roles.pick()}", "requestedBy": session}
        row = {
            "eventVersion": "1.11",
            "userIdentity": {
                "type": "AssumedRole",
                "principalId": f"AROA{key[4:]}:{session}",
                "arn": f"arn:aws:sts::{account}:assumed-role/{role}/{session}",
                "accountId": account,
                "accessKeyId": key,
            },
            "eventTime": time.replace(microsecond=0),
            "eventSource": f"{service}.amazonaws.com",
            "eventName": name,
            "awsRegion": region,
            "sourceIPAddress": f"10.{len(role)}.{random.randrange(8)}.{random.randrange(256)}",
            "userAgent": agents.pick(),
            "errorCode": "AccessDenied" if random.random() < 0.02 else None,
            "requestParameters": json.dumps(parameters),
            "requestID": _uuid(random),
            "eventID": _uuid(random),
            "readOnly": name.startswith(("Get", "Describe", "List")),
            "eventType": "AwsApiCall",
            "managementEvent": service not in ("s3", "dynamodb", "lambda"),
            "recipientAccountId": account,
        }
        yield _to_json(row | {"requestParameters": parameters}), row


def _metrics(random: Random) -> Iterator[tuple[bytes, dict[str, Any]]]:
    sites = [f"plant-{number:02d}" for number in range(25)]
    devices = [[f"sensor-{random.getrandbits(40):010x}", random.choice(sites)] for _ in range(_DEVICES)]
    state = [
        [random.gauss(22, 6), random.gauss(50, 15), random.gauss(1013, 8), random.uniform(3.2, 4.1)] for _ in devices
    ]
    versions = _Zipf(random, ["4.2.1", "4.2.0", "4.1.7", "3.9.12"], 1.5)
    firmware, sent = [versions.pick() for _ in devices], [0] * _DEVICES
    for number, time in enumerate(_times(random, 800)):
        # They report in turns, not quite in the same order every time.
        at = (number + random.randrange(-20, 20)) % _DEVICES
        device, values = devices[at], state[at]
        sent[at] += 1
        for which, step in enumerate((0.15, 0.4, 0.1, -0.00005)):
            values[which] += random.gauss(0, step) if step > 0 else step
        row = {
            "device": device[0],
            "site": device[1],
            "ts": int(time.timestamp() * 1000),
            "seq": sent[at],
            "fw": firmware[at],
            "temperature": round(values[0], 2),
            "humidity": round(values[1], 1),
            "pressure": round(values[2], 2),
            "battery": round(values[3], 3),
            "rssi": -60 - int(random.expovariate(0.1)),
            "ok": random.random() < 0.998,
        }
        yield _to_json(row), row


def _messages(random: Random) -> Iterator[tuple[bytes, dict[str, Any]]]:
    prose = _Prose(random)
    authors = _Zipf(random, [f"{word}{random.randrange(1000)}" for word in _words(random, 20_000)])
    channels = _Zipf(random, ["email", "chat", "review", "forum", "phone"])
    for time in _times(random, 60):
        body = prose.write(int(random.lognormvariate(6, 0.8)))
        row = {
            "id": _uuid(random),
            "ts": time,
            "channel": channels.pick(),
            "author": authors.pick(),
            "subject": prose.write(30),
            "stars": random.choice([1, 2, 4, 5, 5]),
            "body": body,
        }
        yield _to_json(row), row


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_IDENTITY = pa.struct([(name, _TEXT) for name in ("type", "principalId", "arn", "accountId", "accessKeyId")])
_KINDS: dict[str, tuple[pa.Schema, Callable[[Random], Iterator[tuple[bytes, dict[str, Any]]]]]] = {
    "web clicks": (
        _schema(
            event_id=_TEXT,
            ts=_TIME,
            type=_TEXT,
            user_id=_WHOLE,
            session_id=_TEXT,
            url=_TEXT,
            referrer=_TEXT,
            user_agent=_TEXT,
            ip=_TEXT,
            country=_TEXT,
            load_ms=_WHOLE,
        ),
        _clicks,
    ),
    "nginx lines": (
        _schema(
            ip=_TEXT,
            ts=_TIME,
            method=_TEXT,
            path=_TEXT,
            status=_WHOLE,
            bytes=_WHOLE,
            referrer=_TEXT,
            agent=_TEXT,
            seconds=_REAL,
        ),
        _nginx,
    ),
    "audit records": (
        _schema(
            eventVersion=_TEXT,
            userIdentity=_IDENTITY,
            eventTime=_TIME,
            eventSource=_TEXT,
            eventName=_TEXT,
            awsRegion=_TEXT,
            sourceIPAddress=_TEXT,
            userAgent=_TEXT,
            errorCode=_TEXT,
            requestParameters=_TEXT,
            requestID=_TEXT,
            eventID=_TEXT,
            readOnly=_TRUTH,
            eventType=_TEXT,
            managementEvent=_TRUTH,
            recipientAccountId=_TEXT,
        ),
        _audit,
    ),
    "device metrics": (
        _schema(
            device=_TEXT,
            site=_TEXT,
            ts=_WHOLE,
            seq=_WHOLE,
            fw=_TEXT,
            temperature=_REAL,
            humidity=_REAL,
            pressure=_REAL,
            battery=_REAL,
            rssi=_WHOLE,
            ok=_TRUTH,
        ),
        _metrics,
    ),
    "messages": (
        _schema(id=_TEXT, ts=_TIME, channel=_TEXT, author=_TEXT, subject=_TEXT, stars=_WHOLE, body=_TEXT),
        _messages,
    ),
}
