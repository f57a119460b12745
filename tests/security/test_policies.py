"""The table of rights in SECURITY.md is enough for every role, and no right in it is for nothing.

Each role does its whole job on a real server with a policy made of its row. What it asked for is taken from the wire:
a proxy in front of the server has every request line.
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

import pytest
from msgspec.structs import replace

import forebay
from forebay.buffer import read_range
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Denied
from forebay.buffer.base.names import mint
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, NewBatch
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

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
BUCKET = "lake"
BATCHES = 4 * KEPT_LISTINGS
"""Enough for the next append to seal a segment."""
LASTING_WRITERS = 4 * KEPT_LASTING
"""Enough for the next append to seal some of them into a bucket."""


@dataclass(frozen=True)
class Role:
    """A row of the table."""

    name: str
    grants: frozenset[tuple[str, str]]
    """Actions and the keys, below the buffer, that they are allowed on."""

    @property
    def folder(self) -> str:
        """Where this role's buffer is: one for each, so that they do not get in each other's way."""
        return re.sub(r"[^a-z]+", "-", self.name).strip("-")

    def policy(self) -> dict[str, Any]:
        """The row as the document that a store is given."""
        bucket = f"arn:aws:s3:::{BUCKET}"
        listing: dict[str, Any] = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket}
        statements = [{**listing, "Condition": {"StringLike": {"s3:prefix": f"{self.folder}/*"}}}]
        for action in ACTIONS:
            keys = sorted(key for granted, key in self.grants if granted == action)
            if keys:
                resources = [f"{bucket}/{self.folder}/{key}" for key in keys]
                statements.append({"Effect": "Allow", "Action": action, "Resource": resources})
        return {"Version": "2012-10-17", "Statement": statements}

    def allows(self, action: str, key: str) -> bool:
        """Whether the row has it."""
        return any(granted == action and fnmatchcase(key, pattern) for granted, pattern in self.grants)


def read_table() -> dict[str, Role]:
    roles = {}
    for line in SECURITY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 1 + len(ACTIONS) or cells[0] in {"role", "---"}:
            continue
        name = re.split(r"[:,]", cells[0])[0]
        grants = {(action, key) for action, cell in zip(ACTIONS, cells[1:], strict=True) for key in _quoted(cell)}
        roles[name] = Role(name, frozenset(grants))
    return roles


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


ROLES = read_table()


def produce(store: ObjectStore) -> None:
    with forebay.Producer(store) as producer:
        for entry in (b"one", b"two"):
            producer.produce(entry).result()


def consume(store: ObjectStore) -> None:
    with forebay.Consumer(store) as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)


def consume_group(store: ObjectStore) -> None:
    with forebay.Consumer(store, group="etl") as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)


def read(store: ObjectStore) -> None:
    list(read_range(store))


def read_with_a_hold(store: ObjectStore) -> None:
    with forebay.hold(store) as held:
        for descriptor in held.descriptors():
            FetchHandle(store).fetch(descriptor)


def collect(store: ObjectStore) -> None:
    """With a bound on bytes, for which it has to look into segments."""
    report = Collector(store, grace=0, retention=Retention(max_bytes=1000)).collect_once()
    assert report.trimmed >= BATCHES
    assert not report.failed


def check(store: ObjectStore) -> None:
    assert verify(store).severity == Severity.OK


JOBS: dict[str, Callable[[ObjectStore], None]] = {
    "producer": produce,
    "consumer": consume,
    "consumer of group `etl`": consume_group,
    "reader": read,
    "reader with a hold": read_with_a_hold,
    "collector": collect,
    "verify": check,
}


def test_the_table_is_about_the_roles_there_are() -> None:
    assert list(ROLES) == list(JOBS)


def test_the_policy_that_is_printed_is_that_of_the_producer() -> None:
    (printed,) = re.findall(r"```json\n(.*?)```", SECURITY.read_text(), re.DOTALL)
    expected = json.dumps(ROLES["producer"].policy()).replace("producer/", "clicks/")
    found = json.loads(printed)
    for statement in found["Statement"]:
        resources = statement["Resource"]
        if statement["Action"] != "s3:ListBucket":
            statement["Resource"] = sorted([resources] if isinstance(resources, str) else resources)
    assert found == json.loads(expected)


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    """A real server with an identity for each role, that may do what its policy says and nothing else."""
    with SeaweedServer({role.folder: role.policy() for role in ROLES.values()}) as server:
        server.create_bucket(BUCKET)
        yield server


def fill(store: ObjectStore, *, sealed: bool) -> None:
    """A buffer with batches, a segment, a bucket of writers, and an old cursor; all of it an hour old by name."""
    clock, random = ManualClock(SystemClock().now_ms() - 3_600_000), Random(1)
    data = encode_batch([b"x"], "none")
    facts = Facts(len(data), 5, 1, crc32c(data), 0, 0)
    new = [NewBatch(f"data/{mint(clock, random)}.batch", (), facts) for _ in range(BATCHES + 1)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda batch: store.put(batch.location, data), new))
    queue = Queue(store, clock=clock)
    remember_writers(queue, 0)
    queue.append(new[:-1])
    store.put(f"writers/{mint(clock, random)}.writers", b"replaced by another")
    if sealed:
        queue.append(new[-1:])
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


def used(role: Role, requests: list[str], deleted: set[str]) -> set[tuple[str, str]]:
    """The grants that these requests made use of. What none of them covers is named itself."""
    asked = {("s3:DeleteObject", key) for key in deleted}
    for line in requests:
        method, target, _ = line.split(" ")
        url = urlsplit(target)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        if method in {"GET", "PUT"} and key:
            asked.add((f"s3:{method.capitalize()}Object", key.removeprefix(f"{role.folder}/")))
        elif "list-type" in url.query:
            assert parse_qs(url.query)["prefix"][0].startswith(f"{role.folder}/"), line
        else:
            assert (method, url.query) == ("POST", "delete"), line
    return {
        next((grant for grant in role.grants if grant[0] == action and fnmatchcase(key, grant[1])), (action, key))
        for action, key in asked
    }


@pytest.mark.parametrize("name", JOBS)
def test_role_does_its_job_with_its_rights_and_uses_every_one_of_them(server: SeaweedServer, name: str) -> None:
    role = ROLES[name]
    url = f"s3://{BUCKET}/{role.folder}"
    admin = open_store(url, server.storage_options)
    fill(admin, sealed=name != "producer")
    if name in {"collector", "verify"}:
        read_all(admin, "etl")
    before = {found.key for found in admin.list()}
    with FaultProxy(server.endpoint_url) as proxy:
        options = {**server.options_of(role.folder), "endpoint_url": proxy.endpoint_url, "max_attempts": 1}
        JOBS[name](open_store(url, options))
        requests = list(proxy.requests)
    deleted = before - {found.key for found in admin.list()}
    assert used(role, requests, deleted) == role.grants


@pytest.mark.parametrize("name", JOBS)
def test_role_is_denied_everything_else(server: SeaweedServer, name: str) -> None:
    role = ROLES[name]
    keys = ["manifest", "data/probe", "segments/probe", "writers/probe", "cursors/etl/probe", "cursors/other/probe"]
    for folder in (role.folder, "elsewhere"):
        admin = open_store(f"s3://{BUCKET}/{folder}", server.storage_options)
        store = open_store(f"s3://{BUCKET}/{folder}", {**server.options_of(role.folder), "max_attempts": 1})
        for key in keys:
            if key not in [found.key for found in admin.list(key)]:
                admin.put(key, b"probe")
            for action, attempt in attempts(store, key).items():
                if folder != "elsewhere" and role.allows(action, key):
                    continue
                with pytest.raises(Denied):
                    attempt()
    with pytest.raises(Denied):
        list(open_store(f"s3://{BUCKET}/elsewhere", {**server.options_of(role.folder), "max_attempts": 1}).list())


def attempts(store: ObjectStore, key: str) -> dict[str, Callable[[], object]]:
    def delete() -> None:
        for error in store.delete([key]).values():
            raise error

    return {
        "s3:GetObject": lambda: store.get(key),
        "s3:PutObject": lambda: store.put(key, b"changed"),
        "s3:DeleteObject": delete,
    }
