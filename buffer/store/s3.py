"""S3 through s3fs: its session, credentials and event loop, with the requests made on the client below it.

s3fs's own calls are not used: they repeat requests (up to 50 PUTs for one call by default), drop arguments they do not
know, drop conditions on large uploads, and answer from cached listings. Below it, three layers may repeat a request:
botocore (turned off), botocore's region redirector (it acts on an answer) and aiohttp, which replays a PUT whose
connection dropped (turned off). Whether that worked is not assumed but counted: every connection taken for a request
is noted, so a request that never left, or left twice, is known as such.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from contextvars import ContextVar
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import pyarrow as pa
import s3fs
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore import exceptions as boto
from botocore.loaders import create_loader
from botocore.utils import parse_timestamp
from fsspec.asyn import get_loop, sync

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.base.install import installed_version
from forebay.buffer.store.base import ObjectInfo, StoredObject
from forebay.buffer.store.failures import Failure, RequestFailed, broken_client, parse_retry_after, row_failure
from forebay.buffer.store.options import redact
from forebay.buffer.store.remote import MAX_OBJECT_BYTES

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from forebay.buffer.store.base import Data
    from forebay.buffer.store.options import S3Options

_T = TypeVar("_T")

_EMPTY_PAGES = 1000
"""Maximum number of empty pages in a row before a listing counts as endless."""
_CONNECTIONS = 64
_SENT_AT_ONCE = 256 << 10
_LARGE = 1 << 20
_READ_LIMIT_SECONDS = 3600.0
_USER_AGENT = f"forebay/{installed_version('forebay') or 'unknown'}"
# botocore's description of S3: parsing it takes ten times as long as making a client from it.
_service_models = create_loader()
_CREDENTIAL_ERRORS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
)


class _Wire:
    """How often one API call took a connection to send on."""

    def __init__(self) -> None:
        self.watched = False
        self.sends = 0

    @property
    def never_sent(self) -> bool:
        return self.watched and self.sends == 0

    @property
    def sent_once(self) -> bool:
        return self.watched and self.sends == 1


_wire: ContextVar[_Wire] = ContextVar("forebay_s3_wire", default=_Wire())  # noqa: B039  (the default is never read)


async def _note_connection(*_: object) -> None:
    _wire.get().sends += 1


class _WatchedSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore is untyped
    """aiobotocore's HTTP session, without replays and with every connection noted."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        if not session.trace_configs:
            # Private, and the only switch there is. Should it vanish, the count below still tells.
            session._retry_connection = False  # noqa: SLF001
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(_note_connection)
            trace.on_connection_reuseconn.append(_note_connection)
            trace.freeze()
            session.trace_configs.append(trace)
        _wire.get().watched = True
        return session


class _Resolver(aiohttp.ThreadedResolver):
    """Looks names up in a thread, or right here at the interpreter's exit, when a last flush finds no threads left."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        try:
            found: list[Any] = await super().resolve(host, port, family)
        except RuntimeError:
            places = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
            return [
                {"hostname": host, "host": at[0], "port": at[1], "family": kind, "proto": proto, "flags": 0}
                for kind, _, proto, _, at in places
            ]
        return found


class _Connection:
    """An aiobotocore client and the loop it lives on, for this process alone."""

    def __init__(self, options: S3Options) -> None:
        self.pid = os.getpid()
        self.loop: AbstractEventLoop = get_loop()
        self._filesystem = _make_filesystem(options)
        # aiohttp clients must be made on their loop, and closed there: never from a forked child, which shares sockets.
        self.client = sync(self.loop, self._filesystem.set_session, timeout=_READ_LIMIT_SECONDS)
        self.client.meta.events.register_last("before-call.s3", _send_body_at_once)
        weakref.finalize(self, _close, self.pid, self.loop, self._filesystem)


def _send_body_at_once(params: dict[str, Any], **_: object) -> None:
    """Drop `Expect: 100-continue`, which costs a round trip.

    It also parts head and body, and SeaweedFS 4.48 takes a head whose body never comes for an empty object.
    """
    params["headers"].pop("Expect", None)


def _make_filesystem(options: S3Options) -> Any:
    session = AioSession(profile=options.profile)
    session.register_component("data_loader", _service_models)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
    return s3fs.S3FileSystem(
        anon=options.anon,
        key=options.key,
        secret=options.secret,
        token=options.token,
        endpoint_url=options.endpoint_url,
        use_ssl=options.use_ssl,
        client_kwargs={**options.client_kwargs, **({"region_name": options.region} if options.region else {})},
        config_kwargs=_make_config(options, connector_args={"resolver": _Resolver(loop=get_loop())}),
        use_listings_cache=False,
        skip_instance_cache=True,
        asynchronous=True,
        session=session,
    )


def _parse_time(value: Any) -> datetime:
    """Return the time that botocore would, without `dateutil`, which guesses the form of each time."""
    if isinstance(value, str):
        try:
            if value.endswith("Z"):
                return datetime.fromisoformat(value)
            if value.endswith(" GMT"):
                return parsedate_to_datetime(value)
        except ValueError:
            pass
    found: datetime = parse_timestamp(value)
    return found


def _make_config(options: S3Options, **more: Any) -> dict[str, Any]:
    """The settings of botocore's `Config`: ours, then those that were given, but for what keeps a PUT from repeats."""
    at_endpoint: dict[str, Any] = {
        # Servers other than AWS often refuse the checksums that newer clients add unasked.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    given = dict(options.config_kwargs)
    s3_settings = {**({"addressing_style": "path"} if options.endpoint_url else {}), **(given.pop("s3", None) or {})}
    return {
        "max_pool_connections": _CONNECTIONS,
        "user_agent": _USER_AGENT,  # botocore would make one anew for each request
        **(at_endpoint if options.endpoint_url else {}),
        **({"s3": s3_settings} if s3_settings else {}),
        **given,
        "connect_timeout": options.connect_timeout,
        "read_timeout": options.read_timeout,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "http_session_cls": _WatchedSession,
        **more,
    }


def _close(pid: int, loop: AbstractEventLoop, filesystem: Any) -> None:
    if os.getpid() == pid and loop.is_running():
        s3fs.S3FileSystem.close_session(loop, filesystem._s3creator)  # noqa: SLF001


# One client for all handles with the same options: making one takes longer than most requests.
_connections: weakref.WeakValueDictionary[S3Options, _Connection] = weakref.WeakValueDictionary()
_connections_lock = threading.Lock()
_inherited: list[object] = []


def _forget_connections() -> None:
    """In a forked child: keep the parent's connections from ever being closed here, and make our own."""
    global _connections, _connections_lock  # noqa: PLW0603
    _inherited.extend(_connections.values())
    _connections = weakref.WeakValueDictionary()
    _connections_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_connections)


class _Body:
    """Data to upload, as what botocore signs (a file) and aiohttp sends (an iterator), without a copy of it.

    Given bytes, aiohttp would hand all of them to the socket at once, which keeps a copy of what does not fit.
    """

    def __init__(self, data: Data) -> None:
        self._data = memoryview(data).cast("B")
        self._place = 0

    def __len__(self) -> int:
        return len(self._data)

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: len(self)}[whence]
        self._place = start + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        start = self._place
        self._place = len(self) if size < 0 else min(start + size, len(self))
        return bytes(self._data[start : self._place])

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for start in range(0, len(self), _SENT_AT_ONCE):
            yield self._data[start : start + _SENT_AT_ONCE]


async def _read_all(body: Any, size: int) -> bytes | memoryview:
    """Return a body of `size` bytes; a large one in memory of Arrow's pool, which gives out warm memory again.

    Joining what came in costs a third of reading it: most of that is the system making fresh pages for the whole.
    """
    if not _LARGE <= size <= MAX_OBJECT_BYTES:
        data: bytes = await body.read()
        return data
    whole = memoryview(pa.allocate_buffer(size)).cast("B")
    end = 0
    while end < size and (found := await body.read(size - end)):
        whole[end : end + len(found)] = found
        end += len(found)
    await body.read()  # compares with Content-Length and a checksum, as above: half an object is never an object
    if end < size:
        raise boto.IncompleteReadError(actual_bytes=end, expected_bytes=size)
    return whole.toreadonly()


class S3fsClient:
    """Requests to one bucket."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._options = options
        self._connection: _Connection | None = None

    def check_config(self, url: str) -> None:
        """Raise `InvalidInput` if botocore does not accept the settings in `config_kwargs`; nothing is sent."""
        if not self._options.config_kwargs:
            return
        try:
            AioConfig(**_make_config(self._options))
        except Exception as error:  # noqa: BLE001  (a wrong setting raises one of many types)
            problem = redact(f"{type(error).__name__}: {error}", self._options)
        else:
            return
        raise InvalidInput(
            f"{url}: botocore does not accept the storage option config_kwargs: {problem}; correct or remove it"
        )

    def get(self, key: str, unless_version: str | None = None) -> StoredObject:
        """Return data and version. If the version is still `unless_version`, the failure has status 304."""
        condition = {} if unless_version is None else {"IfNoneMatch": unless_version}

        async def read(client: Any) -> StoredObject:
            answer = await client.get_object(Bucket=self._bucket, Key=key, **self._options.read_kwargs, **condition)
            body = answer["Body"]
            async with body:  # what that returns is, in earlier releases of aiobotocore, not the body
                data = await _read_all(body, answer.get("ContentLength", 0))
            if not answer.get("ETag"):
                raise RequestFailed(Failure(None, "NoVersion", "the store named no version (ETag)"))
            return StoredObject(data, answer["ETag"])

        return self._call(read, _READ_LIMIT_SECONDS)

    def put(self, key: str, data: Data, *, if_version: str | None = None, if_absent: bool = False) -> str | None:
        """Write once and return the version."""
        condition = {"IfMatch": if_version} if if_version is not None else {"IfNoneMatch": "*"} if if_absent else {}
        body = _Body(data)

        async def write(client: Any) -> str | None:
            request = {"Bucket": self._bucket, "Key": key, "Body": body}
            # guard: a conditional write is encrypted as asked too
            answer = await client.put_object(**request, **self._options.write_kwargs, **condition)
            version: str | None = answer.get("ETag")
            return version

        return self._call(write, self._options.upload_timeout(len(body)))

    def list_pages(self, prefix: str, start_after: str) -> Iterator[Sequence[ObjectInfo]]:
        """Yield pages of full keys."""
        place = {"StartAfter": start_after} if start_after else {}
        empty = 0
        while True:
            page, token = self._call(partial(self._list, prefix, place))
            yield page
            if not token:
                return
            empty = 0 if page else empty + 1
            if place.get("ContinuationToken") == token or empty > _EMPTY_PAGES:  # guard: give up on an endless listing
                raise RequestFailed(Failure(200, "", "a listing that does not come to an end"))
            place = {"ContinuationToken": token}

    async def _list(self, prefix: str, place: dict[str, str], client: Any) -> tuple[list[ObjectInfo], str | None]:
        request = {"Bucket": self._bucket, "Prefix": prefix, **self._options.request_kwargs}
        answer = await client.list_objects_v2(**request, **place)
        if "IsTruncated" not in answer:
            # Any XML, and some HTML, parses as a listing without objects.
            raise RequestFailed(Failure(200, "", "not a listing", sent_once=_wire.get().sent_once))
        rows = [
            ObjectInfo(row["Key"], row["Size"], int(row["LastModified"].timestamp() * 1000))
            for row in answer.get("Contents", ())
        ]
        return rows, answer.get("NextContinuationToken")

    def delete(self, keys: Sequence[str]) -> Mapping[str, Failure]:
        """Delete in one request and return failures by key."""
        objects = [{"Key": key} for key in keys]

        async def delete(client: Any) -> dict[str, Failure]:
            request = {"Bucket": self._bucket, "Delete": {"Objects": objects, "Quiet": True}}
            answer = await client.delete_objects(**request, **self._options.request_kwargs)
            return {
                row["Key"]: row_failure(row.get("Code", ""), redact(row.get("Message", ""), self._options))
                for row in answer.get("Errors", ())
            }

        return self._call(delete)

    def _call(self, request: Callable[[Any], Awaitable[_T]], seconds: float | None = None) -> _T:
        wire = _Wire()
        connection: _Connection | None = None
        limit = seconds or self._options.connect_timeout + self._options.read_timeout

        async def run(client: Any) -> _T:
            _wire.set(wire)
            return await request(client)

        try:
            connection = self._connect()
            answer: _T = sync(connection.loop, run, connection.client, timeout=limit)
        except RequestFailed:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it was, the caller needs to know what it means for the write)
            failure = self._explain(error, wire, connected=connection is not None)
        else:
            return answer
        raise RequestFailed(failure)

    def _connect(self) -> _Connection:
        connection = self._connection
        if connection is None or connection.pid != os.getpid():
            with _connections_lock:
                connection = _connections.get(self._options)
                if connection is None:
                    connection = _connections[self._options] = _Connection(self._options)
            self._connection = connection
        return connection

    def _explain(self, error: Exception, wire: _Wire, *, connected: bool) -> Failure:
        if isinstance(error, boto.ClientError):
            told = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = str(told.get("Code", ""))
            detail = redact(str(told.get("Message", "")), self._options)
            headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
            return Failure(
                status,
                "" if code == str(status) else code,  # where there is no XML, botocore makes the status the code
                detail,
                sent_once=wire.sent_once,
                retry_after=parse_retry_after(headers.get("retry-after")),
            )
        if isinstance(error, _CREDENTIAL_ERRORS):
            return Failure(None, "NoCredentials", type(error).__name__, never_sent=True)
        if isinstance(error, RecursionError):
            # botocore asks where the bucket is, is redirected, and asks again.
            return Failure(301, "PermanentRedirect", sent_once=False)
        never_sent = wire.never_sent or not connected
        broken = broken_client(error, redact(str(error), self._options), "s3fs", sent=not never_sent)
        if broken is not None:
            return Failure(None, *broken, never_sent=never_sent, sent_once=wire.sent_once)
        cause = error.__context__ or error.__cause__
        detail = type(error).__name__ if cause is None else f"{type(error).__name__}, {type(cause).__name__}"
        if isinstance(error, boto.ParamValidationError | ValueError) and not wire.watched:
            return Failure(400, "", redact(f"{detail}: {error}", self._options))
        return Failure(None, "", detail, never_sent=never_sent, sent_once=wire.sent_once)
