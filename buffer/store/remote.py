"""Objects behind HTTP: what every cloud store does alike, whichever client library talks to it."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import ForebayError, InvalidInput, StoreError, Unavailable, Unknown
from forebay.buffer.store.base import (
    MAX_KEY_BYTES,
    Applied,
    InDoubt,
    ObjectInfo,
    ObjectStore,
    StoredObject,
    check_key,
    check_prefix,
)
from forebay.buffer.store.failures import Failure, RequestFailed, error_for, judge_conditional_write
from forebay.buffer.store.options import seal
from forebay.buffer.store.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.store.base import Data, Outcome
    from forebay.buffer.store.options import ClientOptions

MAX_OBJECT_BYTES = 5 * 1024**3
"""The most that one PUT may carry on S3. A multipart upload could carry more, but is not one conditional write."""

_DELETE_AT_ONCE = 1000


class ObjectClient(Protocol):
    """What a client library must be made to do. Every method sends one request and raises `RequestFailed`."""

    def get(self, key: str, unless_version: str | None = None) -> StoredObject:
        """Return data and version. If the version is still `unless_version`, the failure has status 304."""

    def put(self, key: str, data: Data, *, if_version: str | None = None, if_absent: bool = False) -> str | None:
        """Write once, never repeating the request, and return the version; None if the store named none."""

    def list_pages(self, prefix: str, start_after: str) -> Iterator[Sequence[ObjectInfo]]:
        """Yield pages of full keys in order, one request each."""

    def delete(self, keys: Sequence[str]) -> Mapping[str, Failure]:
        """Delete at most 1,000 objects and return failures by key."""


class RemoteStore(ObjectStore):
    """Objects below a URL of a bucket."""

    def __init__(
        self,
        url: str,
        folder: str,
        client: ObjectClient,
        options: ClientOptions,
        reopen: Callable[[str, bytes], ObjectStore],
        *,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """Use `open_store`. `folder` is the URL's path in the bucket, without slashes at either end."""
        self.url = url
        self._root = f"{folder}/" if folder else ""
        self._client = client
        self._options = options
        self._reopen = reopen
        self._retry = Retry(clock or SystemClock(), random or system_random(), options.max_attempts)

    def __reduce__(self) -> tuple[object, ...]:
        return self._reopen, (self.url, seal(self._options.given()))

    def get(self, key: str) -> StoredObject:
        """Return the object and its version, from one request."""
        path = self._path(key)
        try:
            return self._retry.call(lambda: self._client.get(path))
        except RequestFailed as error:
            raise error_for(error.failure, self._place(key)) from None

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Return the object, or None while its version is still `version`."""
        path = self._path(key)
        try:
            return self._retry.call(lambda: self._client.get(path, version))
        except RequestFailed as error:
            if error.failure.status == 304:
                return None
            raise error_for(error.failure, self._place(key)) from None

    def put(self, key: str, data: Data) -> str:
        """Write the object whatever was there, and return its version."""
        path = self._writable_path(key, data)
        doubts: list[Failure] = []

        def note(failure: Failure) -> None:
            if failure.in_doubt:
                doubts.append(failure)

        try:
            version = self._retry.call(lambda: self._client.put(path, data), note)
        except RequestFailed as error:
            # A refusal of the last attempt says nothing of an earlier one that was lost on the way.
            if doubts:
                raise Unknown(
                    f"{self._place(key)}: the write may or may not have been applied ({doubts[-1]}); read "
                    "before repeating it"
                ) from None
            raise error_for(error.failure, self._place(key)) from None
        if version is None:
            raise Unknown(
                f"{self._place(key)}: the write seems to be applied, but the answer has no version "
                "(ETag); read before repeating it"
            )
        return version

    def create(self, key: str, data: Data) -> Outcome:
        """Write the object only if there is none."""
        return self._write_if(key, data, None)

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write the object only if its version is still `version`."""
        if not version:
            raise InvalidInput(
                f"version must not be empty: the replacement of {self._place(key)} would be unconditional"
            )
        return self._write_if(key, data, version)

    def _write_if(self, key: str, data: Data, version: str | None) -> Outcome:
        path = self._writable_path(key, data)
        try:
            made = self._client.put(path, data, if_version=version, if_absent=version is None)
        except RequestFailed as error:
            failure = error.failure
        else:
            return InDoubt("the store named no version (ETag)") if made is None else Applied(made)
        return judge_conditional_write(failure, self._place(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix` and sort after `start_after`, in UTF-8 order."""
        full_prefix = self._root + check_prefix(prefix)
        return self._list(full_prefix, self._root + check_prefix(start_after) if start_after else "")

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        failed = 0
        while True:
            try:
                for page in self._client.list_pages(prefix, after):
                    failed = 0
                    for row in page:
                        after = row.key
                        yield ObjectInfo(row.key.removeprefix(self._root), row.size, row.modified_ms)
            except RequestFailed as error:
                failed += 1
                if not error.failure.transient or failed >= self._retry.attempts:
                    raise error_for(error.failure, self.url) from None
                self._retry.wait(failed - 1)
            else:
                return

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete objects, and return the failures by key."""
        # Checked before anything is sent, and each once: S3 refuses a request that names a key twice.
        paths = iter(dict.fromkeys([self._path(key) for key in keys]))
        failures: dict[str, StoreError] = {}
        while chunk := list(islice(paths, _DELETE_AT_ONCE)):
            failures.update(self._delete_chunk(chunk))
        return failures

    def _delete_chunk(self, chunk: Sequence[str]) -> dict[str, StoreError]:
        failures: dict[str, Failure] = {}

        def send() -> None:
            remaining = [path for path in chunk if path in failures] or chunk
            failures.clear()
            try:
                failures.update(self._client.delete(remaining))
            except RequestFailed as error:
                failures.update(dict.fromkeys(remaining, error.failure))
            passing = [failure for failure in failures.values() if failure.transient]
            if passing:
                raise RequestFailed(passing[0])

        with suppress(RequestFailed):  # what is left to say is in `failures`
            self._retry.call(send)
        return {path.removeprefix(self._root): self._delete_error(path, failure) for path, failure in failures.items()}

    def _delete_error(self, path: str, failure: Failure) -> StoreError:
        error: ForebayError = error_for(failure, self._place(path.removeprefix(self._root)))
        return error if isinstance(error, StoreError) else Unavailable(str(error))

    def _path(self, key: str) -> str:
        path = self._root + check_key(key)
        if len(path.encode()) > MAX_KEY_BYTES:
            raise InvalidInput(
                f"object key {path!r}, which includes the URL's folder, must be at most {MAX_KEY_BYTES} bytes long"
            )
        return path

    def _writable_path(self, key: str, data: Data) -> str:
        size = memoryview(data).nbytes
        if size > MAX_OBJECT_BYTES:
            raise InvalidInput(
                f"{self._place(key)}: an object must be at most {MAX_OBJECT_BYTES} bytes long, not {size}"
            )
        return self._path(key)

    def _place(self, key: str) -> str:
        return f"{self.url}/{key}"
