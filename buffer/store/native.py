"""S3, Google and Azure through obstore, the Rust client: less CPU per request, and conditional writes on all three.

obstore is configured to send every request once; `retry` repeats reads. Its errors do not contain the response headers,
so `Retry-After` is not known here. They carry the HTTP status and the store's answer only as text, in the
debug form that ends the message: what is parsed here is that form, in which text from the store is quoted and can
imitate nothing. What cannot be parsed leaves a write in doubt.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import store as stores

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.store.base import ObjectInfo, StoredObject
from forebay.buffer.store.failures import NO_BUCKET, Failure, RequestFailed, broken_client, row_failure
from forebay.buffer.store.options import NativeOptions, S3Options, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from forebay.buffer.store.base import Data

_T = TypeVar("_T")

_CLASSES: dict[str, Any] = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
_PAGE = 1000
_READ_LIMIT_SECONDS = 3600.0
_SMALL_UPLOAD = 8 * 1024 * 1024

_DEBUG_FORM = "\n\nDebug source:\n"
_STATUS = re.compile(r"^ *status: (\d{3}),$", re.MULTILINE)
_BODY = re.compile(r"^ *body: Some\(\n *(\".*\"),\n *\),$", re.MULTILINE)
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\\]{1,200})")
_KIND = re.compile(r"HttpError \{\n *kind: (\w+),")
_DELETE_FAILED = re.compile(r"DeleteFailed \{\n *path: .*\n *code: \"(\w+)\",$", re.MULTILINE)
_REPEATS = re.compile(r"^ *retries: (\d+),$", re.MULTILINE)
# hyper's own word that it got no further than connecting; a time-out while connecting has it too.
_CONNECTING = re.compile(r"legacy::Error\(\n *Connect,")

# The tokio runtime is one per process and its threads do not survive a fork: a call in the child would never return.
_used_in: int | None = None


def _claim_process() -> None:
    global _used_in  # noqa: PLW0603
    if _used_in is None:
        _used_in = os.getpid()
    elif _used_in != os.getpid():
        raise Unsupported(
            "obstore was used in this process's parent before the fork and cannot be used here; start processes with "
            "multiprocessing's 'spawn' or 'forkserver', or use s3fs: with both installed and no storage option client, "
            "a forked process changes to it; client='s3fs' always takes it"
        )


def _environment_has_token() -> bool:
    return any(map(os.environ.get, ("AWS_SESSION_TOKEN", "AWS_TOKEN")))


def _give_credentials(key: str, secret: str | None) -> dict[str, Any]:
    return {"access_key_id": key, "secret_access_key": secret, "token": None, "expires_at": None}


class ObstoreClient:
    """Requests to one bucket."""

    def __init__(self, scheme: str, bucket: str, options: S3Options | NativeOptions) -> None:
        self._scheme = scheme
        self._bucket = bucket
        self._options = options
        self._stores: dict[float, Any] = {}
        self._lock = threading.Lock()

    @staticmethod
    def is_usable_here() -> bool:
        """Whether obstore works in this process: one that was forked after it was used would hang."""
        return _used_in is None or _used_in == os.getpid()

    def check_config(self, url: str) -> None:
        """Raise `InvalidInput` if obstore does not accept the options; nothing is sent."""
        try:
            self._make_store(self._options.read_timeout)
        except Exception as error:  # noqa: BLE001  (a wrong option raises one of many types)
            problem = redact(str(error), self._options)
        else:
            return
        raise InvalidInput(f"{url}: obstore does not accept these storage options: {problem}; correct or remove them")

    def get(self, key: str, unless_version: str | None = None) -> StoredObject:
        """Return data and version. If the version is still `unless_version`, the failure has status 304."""
        options: Any = None if unless_version is None else {"if_none_match": self._etag(unless_version)}

        def read() -> StoredObject:
            answer = obstore.get(self._store(), key, options=options)
            data = memoryview(answer.bytes())
            if data.nbytes != answer.meta["size"]:
                raise RequestFailed(Failure(None, "Truncated", f"{data.nbytes} of {answer.meta['size']} bytes"))
            version = self._version(answer.meta)
            if version is None:
                raise RequestFailed(Failure(None, "NoVersion", "the store named no version (ETag)"))
            return StoredObject(data, version)

        return self._call(read)

    def put(self, key: str, data: Data, *, if_version: str | None = None, if_absent: bool = False) -> str | None:
        """Write once and return the version."""
        mode: Any = "create" if if_absent else "overwrite" if if_version is None else self._expected(if_version)
        body = data if isinstance(data, bytes) else memoryview(data).cast("B")

        def write() -> str | None:
            store = self._store(len(body))
            return self._version(obstore.put(store, key, body, mode=mode, use_multipart=False))

        return self._call(write)

    def list_pages(self, prefix: str, start_after: str) -> Iterator[Sequence[ObjectInfo]]:
        """Yield pages of full keys that start with the prefix."""
        # obstore's prefix ends at a slash: list the folder from just before the prefix, and stop just after it.
        folder = prefix.rpartition("/")[0] or None
        before = _just_before(prefix) if prefix and not prefix.endswith("/") else ""
        offset = max(start_after, before, key=str.encode).rstrip("/")  # obstore drops a slash at the end, too
        rows = self._call(lambda: iter(obstore.list(self._store(), folder, offset=offset or None, chunk_size=_PAGE)))
        while page := self._call(lambda: next(rows, None)):
            yield [_info(row) for row in page if self._is_wanted(row["path"], prefix, start_after)]
            last = page[-1]["path"]
            if not last.startswith(prefix) and last.encode() > prefix.encode():
                return

    def _is_wanted(self, path: str, prefix: str, start_after: str) -> bool:
        # obstore drops a slash at the end of an offset, and not every server for Azure knows offsets: Azurite does not.
        is_exact = self._scheme != "az" and not start_after.endswith("/")
        return path.startswith(prefix) and (is_exact or path.encode() > start_after.encode())

    def delete(self, keys: Sequence[str]) -> Mapping[str, Failure]:
        """Delete in one request if it works, else one by one, since obstore does not say which of many failed."""
        try:
            self._call(partial(self._delete, list(keys)))
        except RequestFailed as error:
            if error.failure.transient:
                raise
        else:
            return {}
        failures: dict[str, Failure] = {}
        for key in keys:
            try:
                self._call(partial(self._delete, key))
            except RequestFailed as error:
                if error.failure.status != 404 or error.failure.code in NO_BUCKET:
                    failures[key] = error.failure
        return failures

    def _delete(self, keys: str | list[str]) -> None:
        obstore.delete(self._store(), keys)

    def _version(self, meta: Any) -> str | None:
        etag: str | None = meta["e_tag"]
        if self._scheme == "gs":
            # Google compares generations on a write and ETags on a read, so a version is both.
            return f"{meta['version']} {etag}" if etag and meta["version"] else None
        return etag or None

    def _etag(self, version: str) -> str:
        return version.partition(" ")[2] if self._scheme == "gs" else version

    def _expected(self, version: str) -> dict[str, str]:
        if self._scheme == "gs":
            generation, _, etag = version.partition(" ")
            return {"version": generation, "e_tag": etag}
        return {"e_tag": version}

    def _store(self, upload_size: int = 0) -> Any:
        # An upload counts as waiting for the answer, so a larger one needs a client with more patience.
        patience = self._options.read_timeout
        if upload_size > _SMALL_UPLOAD:
            patience = self._options.upload_timeout(1 << upload_size.bit_length())
        with self._lock:
            if patience not in self._stores:
                self._stores[patience] = self._make_store(patience)
            return self._stores[patience]

    def _make_store(self, read_timeout: float) -> Any:
        options = self._options
        client_options = {
            "connect_timeout": timedelta(seconds=options.connect_timeout),
            "read_timeout": timedelta(seconds=read_timeout),
            "timeout": timedelta(seconds=max(_READ_LIMIT_SECONDS, read_timeout)),
            "allow_http": True,
        }
        config = dict(options.config) if isinstance(options, NativeOptions) else options.object_store_config()
        given: dict[str, Any] = {"client_options": client_options, "retry_config": {"max_retries": 0}}
        # guard: a session token of the environment is not sent with a key that was given
        if isinstance(options, S3Options) and options.key and not options.token and _environment_has_token():
            given["credential_provider"] = partial(_give_credentials, options.key, options.secret)
        return _CLASSES[self._scheme](self._bucket, config=config, **given)

    def _call(self, request: Callable[[], _T]) -> _T:
        _claim_process()
        try:
            return _run_interruptibly(request)
        except RequestFailed:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it was, the caller needs to know what it means for the write)
            failure = self._explain(error)
        raise RequestFailed(failure)

    def _explain(self, error: Exception) -> Failure:
        # The last one: before it stands the store's answer as it came, which may hold anything.
        debug = str(error).rpartition(_DEBUG_FORM)[2]
        status = _STATUS.search(debug)
        body = _BODY.search(debug)
        repeats = _REPEATS.search(debug)
        sent_once = repeats is not None and repeats[1] == "0"
        if status:
            code, message = _CODE.search(body[1] if body else ""), _MESSAGE.search(body[1] if body else "")
            detail = redact(message[1], self._options) if message else ""
            return Failure(int(status[1]), code[1] if code else "", detail, sent_once=sent_once)
        if row := _DELETE_FAILED.search(debug):
            # Azure's rows carry a status where S3's carry a code.
            return Failure(int(row[1])) if row[1].isdigit() else row_failure(row[1], "")
        if "BareRedirect" in debug:
            return Failure(301, "PermanentRedirect", sent_once=sent_once)
        broken = broken_client(error, redact(str(error), self._options), "obstore", sent=True)
        if broken is not None:
            return Failure(None, *broken, sent_once=False)
        kind = _KIND.search(debug)
        detail = f"{type(error).__name__}, {kind[1]}" if kind else type(error).__name__
        return Failure(None, "", detail, never_sent=bool(kind and _CONNECTING.search(debug)), sent_once=False)


def _run_interruptibly(request: Callable[[], _T]) -> _T:
    """Run a request so that Ctrl-C does not wait for its answer.

    Python handles signals in the main thread, between two steps of its own: not while that thread waits in Rust.
    """
    # A thread that is started while the interpreter ends never runs.
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return request()
    answer: Future[_T] = Future()
    try:
        threading.Thread(target=_run, args=(request, answer), name="forebay-obstore", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        return request()
    try:
        # A signal that comes just before a wait begins does not end that wait. It is handled before the next one.
        while not answer.done():  # guard: look again for signals while an answer is awaited
            wait([answer], 1.0)
        return answer.result()
    finally:
        del answer  # its error refers to this frame, and so would keep the body of the request in memory


def _run(request: Callable[[], _T], answer: Future[_T]) -> None:
    try:
        answer.set_result(request())
    except BaseException as error:  # noqa: BLE001  (it is the caller's)
        answer.set_exception(error)
    finally:
        del request, answer


def _info(row: Any) -> ObjectInfo:
    return ObjectInfo(row["path"], row["size"], int(row["last_modified"].timestamp() * 1000))


def _just_before(prefix: str) -> str:
    """A key that sorts before every key that starts with the prefix, and after nearly every other."""
    last = ord(prefix[-1]) - 1
    if 0xD800 <= last <= 0xDFFF:
        last = 0xD7FF  # below the surrogates, which no key can hold
    return prefix[:-1] + (chr(last) + "\U0010ffff" if last > 0x20 else "")
