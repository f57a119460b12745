"""The policies in deploy/iam are enough for every role, and no right in them is for nothing.

Each role does its whole job on a real server with its policy, on a buffer of bytes and on a typed one. What it asked
for is taken from the wire: a proxy in front of the server has every request line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pytest
from kinds import BYTES, ROWS, Kind, append_all
from msgspec.structs import replace

import forebay
from forebay.buffer import read_range
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Denied
from forebay.buffer.base.names import mint
from forebay.buffer.groups import Groups
from forebay.buffer.inspect.findings import Severity
from forebay.buffer.inspect.verify import verify
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head import KEPT_LASTING, KEPT_LISTINGS, bucket_of
from forebay.buffer.manifest.head_fields import Writer
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import ObjectStore, open_store
from forebay.gc import Collector, Retention
from forebay.testing import ManualClock
from forebay.testing.proxy import FaultProxy
from forebay.testing.servers import SeaweedServer

TOP = Path(__file__).parents[2]
ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
BUCKET = "lake"
OBJECTS = f"arn:aws:s3:::{BUCKET}/clicks/"
BATCHES = 4 * KEPT_LISTINGS
"""Enough for the next append to seal a segment."""
LASTING_WRITERS = 4 * KEPT_LASTING
"""Enough for the next append to seal some of them into a bucket."""
WIDER = pa.schema([*(ROWS.schema or ()), ("page", pa.string())])


@dataclass(frozen=True)
class Role:
    """A policy of deploy/iam, for the buffer s3://lake/clicks."""

    text: str

    @property
    def grants(self) -> set[tuple[str, str]]:
        """Actions and the keys, below the buffer, that they are allowed on."""
        statements = json.loads(self.text)["Statement"]
        return {
            (statement["Action"], resource.removeprefix(OBJECTS))
            for statement in statements
            if statement["Action"] in ACTIONS
            for resource in statement["Resource"]
        }

    def policy(self, folder: str) -> dict[str, Any]:
        """The policy for the buffer in another folder: each test has one of its own."""
        found: dict[str, Any] = json.loads(self.text.replace("clicks/", f"{folder}/"))
        return found

    def allows(self, action: str, key: str) -> bool:
        """Whether the policy has it."""
        return any(granted == action and fnmatchcase(key, pattern) for granted, pattern in self.grants)


ROLES = {path.stem: Role(path.read_text()) for path in (TOP / "deploy" / "iam").iterdir()}


def produce(store: ObjectStore, kind: Kind) -> None:
    with forebay.Producer(store, schema=kind.schema) as producer:
        for value in (b"one", b"two"):
            producer.produce(kind.make(value)).result()
    if kind is ROWS:
        with forebay.Producer(store, schema=WIDER, evolve=True):
            pass


def consume(store: ObjectStore, _kind: Kind) -> None:
    with forebay.Consumer(store) as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)


def consume_group(store: ObjectStore, _kind: Kind) -> None:
    with forebay.Consumer(store, group="etl") as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)


def read(store: ObjectStore, _kind: Kind) -> None:
    list(read_range(store))


def read_with_a_hold(store: ObjectStore, _kind: Kind) -> None:
    with forebay.hold(store) as held:
        for descriptor in held.descriptors():
            FetchHandle(store).fetch(descriptor)


def collect(store: ObjectStore, _kind: Kind) -> None:
    """With a bound on bytes, for which it has to look into segments."""
    report = Collector(store, grace=0, retention=Retention(max_bytes=1000)).collect_once()
    assert report.trimmed >= BATCHES
    assert not report.failed


def check(store: ObjectStore, _kind: Kind) -> None:
    assert verify(store).severity == Severity.OK


JOBS: dict[str, Callable[[ObjectStore, Kind], None]] = {
    "producer": produce,
    "consumer": consume,
    "group-consumer": consume_group,
    "reader": read,
    "reader-with-hold": read_with_a_hold,
    "collector": collect,
    "verify": check,
}


def test_every_policy_is_in_the_table_of_roles() -> None:
    named = re.findall(r"\]\(deploy/iam/([\w-]+)\.json\)", (TOP / "SECURITY.md").read_text())
    assert named == list(JOBS)
    assert set(named) == set(ROLES)


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    """A real server with identities for each role, that may do what its policy says and nothing else."""
    folders = {f"{name}-{kind.name}": role for name, role in ROLES.items() for kind in (BYTES, ROWS)}
    with SeaweedServer({folder: role.policy(folder) for folder, role in folders.items()}) as server:
        server.create_bucket(BUCKET)
        yield server


def fill(store: ObjectStore, kind: Kind, *, sealed: bool) -> None:
    """A buffer with batches, a segment, a bucket of writers, and an old cursor; all of it an hour old by name."""
    clock, random = ManualClock(SystemClock().now_ms() - 3_600_000), Random(1)
    kind.begin(store)
    ending = "batch" if kind is BYTES else "parquet"
    names = [f"data/{mint(clock, random)}.{ending}" for _ in range(BATCHES + 1)]
    with ThreadPoolExecutor(4) as pool:
        new = list(pool.map(lambda name: kind.upload(store, name, [b"x"]), names))
    queue = Queue(store, clock=clock)
    remember_writers(queue, 0)
    append_all(queue, new[:-1])
    store.put(f"writers/{mint(clock, random)}.writers", b"replaced by another")
    if sealed:
        append_all(queue, new[-1:])
    else:
        remember_writers(queue, LASTING_WRITERS)
    read_all(store, "gone")
    Groups(store).delete("gone")


def remember_writers(queue: Queue, first: int) -> None:
    """Have the head hold lasting writers of one bucket."""
    names = (f"={number}" for number in count() if bucket_of(f"={number}") == 0)
    writers = {name: Writer(1, 0) for name in islice(names, first, first + LASTING_WRITERS)}
    queue.change_head(lambda head: replace(head.touch(), writers={**head.writers, **writers}), lambda _head: False)


def read_all(store: ObjectStore, group: str) -> None:
    with forebay.Consumer(store, group=group) as consumer:
        consumer.ack_through(consumer.next_descriptors(2 * BATCHES)[-1].sequence)


def used(grants: set[tuple[str, str]], folder: str, requests: list[str], deleted: set[str]) -> set[tuple[str, str]]:
    """The grants that these requests made use of. What none of them covers is named itself."""
    asked = {("s3:DeleteObject", key) for key in deleted}
    for line in requests:
        method, target, _ = line.split(" ")
        url = urlsplit(target)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        if method in {"GET", "PUT"} and key:
            asked.add((f"s3:{method.capitalize()}Object", key.removeprefix(f"{folder}/")))
        elif "list-type" in url.query:
            assert parse_qs(url.query)["prefix"][0].startswith(f"{folder}/"), line
        else:
            assert (method, url.query) == ("POST", "delete"), line
    return {
        next((grant for grant in grants if grant[0] == action and fnmatchcase(key, grant[1])), (action, key))
        for action, key in asked
    }


def do_job(server: SeaweedServer, name: str, kind: Kind) -> set[tuple[str, str]]:
    """Let a role do its job with its rights, and return those that it used."""
    folder = f"{name}-{kind.name}"
    url = f"s3://{BUCKET}/{folder}"
    admin = open_store(url, server.storage_options)
    fill(admin, kind, sealed=name != "producer")
    if name in {"collector", "verify"}:
        read_all(admin, "etl")
    before = {found.key for found in admin.list()}
    with FaultProxy(server.endpoint_url) as proxy:
        options = {**server.options_of(folder), "endpoint_url": proxy.endpoint_url, "max_attempts": 1}
        JOBS[name](open_store(url, options), kind)
        requests = list(proxy.requests)
    deleted = before - {found.key for found in admin.list()}
    return used(ROLES[name].grants, folder, requests, deleted)


@pytest.mark.parametrize("name", JOBS)
def test_role_does_its_job_with_its_rights_and_uses_every_one_of_them(server: SeaweedServer, name: str) -> None:
    assert do_job(server, name, BYTES) | do_job(server, name, ROWS) == ROLES[name].grants


@pytest.mark.parametrize("name", JOBS)
def test_role_is_denied_everything_else(server: SeaweedServer, name: str) -> None:
    role, own = ROLES[name], f"{name}-{BYTES.name}"
    options = {**server.options_of(own), "max_attempts": 1}
    folders = ["manifest", "data", "segments", "writers", "schemas", "cursors/etl", "cursors/other"]
    keys = [folder if folder == "manifest" else f"{folder}/probe" for folder in folders]
    for folder in (own, "elsewhere"):
        admin = open_store(f"s3://{BUCKET}/{folder}", server.storage_options)
        store = open_store(f"s3://{BUCKET}/{folder}", options)
        for key in keys:
            if key not in [found.key for found in admin.list(key)]:
                admin.put(key, b"probe")
            for action, attempt in attempts(store, key).items():
                if folder != "elsewhere" and role.allows(action, key):
                    continue
                with pytest.raises(Denied):
                    attempt()
    with pytest.raises(Denied):
        list(open_store(f"s3://{BUCKET}/elsewhere", options).list())


def attempts(store: ObjectStore, key: str) -> dict[str, Callable[[], object]]:
    def delete() -> None:
        for error in store.delete([key]).values():
            raise error

    return {
        "s3:GetObject": lambda: store.get(key),
        "s3:PutObject": lambda: store.put(key, b"changed"),
        "s3:DeleteObject": delete,
    }
