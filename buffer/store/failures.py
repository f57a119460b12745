"""What a failed HTTP request means: one table for every client library.

A client adapter reduces whatever its library raised to a `Failure`; here it becomes an outcome or a typed error. Texts
are made here, from the status and the store's error code: a library's own text may hold signed URLs and headers.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.buffer.base.errors import Denied, ForebayError, InvalidInput, NotFound, Unavailable, Unsupported
from forebay.buffer.base.install import upgrade_hint
from forebay.buffer.store.base import InDoubt, NotApplied

_NO_OBJECT = frozenset({"NoSuchKey", "BlobNotFound"})
NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
"""Codes that say that the bucket itself is missing."""
BROKEN_CLIENT = "BrokenClient"
"""The client library itself failed, for example because of incompatible versions."""
SHAKEN_CLIENT = "ShakenClient"
"""As `BROKEN_CLIENT`, but a lost connection may be the cause, so another attempt makes sense."""
_PROGRAMMING_ERRORS = (TypeError, ImportError, NameError, SyntaxError, NotImplementedError, AssertionError)
_EXISTS = frozenset({"BlobAlreadyExists"})
_BAD_CREDENTIALS = frozenset(
    {
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "NoCredentials",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_WRONG_PLACE = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
# Sent with status 400: the upload came too slowly, or the client is to slow down.
_SLOW = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"})
_TOO_OFTEN = _SLOW - {"RequestTimeout"}
_MOST_RETRY_AFTER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that did not succeed."""

    status: int | None
    """The HTTP status, or None where no whole answer came."""
    code: str = ""
    """The store's own name for it, such as `NoSuchKey`."""
    detail: str = ""
    """A few words more, free of secrets."""
    never_sent: bool = False
    """True only where it is certain that the store saw nothing: refused, no such host, no TLS."""
    sent_once: bool = True
    """False where a layer below may have sent the request twice, so that the answer may be to a repeat."""
    retry_after: float = 0.0
    """Seconds that the store asks to wait before the next try; 0 if it does not say."""

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed a moment later."""
        if self.status is None:
            return self.code not in {"NoCredentials", BROKEN_CLIENT}
        return self.status in {408, 409, 429} or (self.status >= 500 and self.status != 501) or self.code in _SLOW

    @property
    def throttled(self) -> bool:
        """Whether the store says that it is asked too often."""
        return self.status == 429 or self.code in _TOO_OFTEN

    @property
    def in_doubt(self) -> bool:
        """Whether a write that failed like this may have been applied, or may yet be."""
        if self.never_sent:
            return False
        # guard: a server error leaves a write in doubt
        answered = self.status is not None and 300 <= self.status < 500 and self.status != 408
        # With any other status, a code such as SlowDown may come from a proxy.
        # guard: a 429 means not applied whatever its code
        answered = answered and (self.status == 429 or self.code not in _SLOW)
        # guard: an answer to a possibly repeated request leaves doubt
        return not (self.sent_once and (answered or self.status == 501))

    def __str__(self) -> str:
        named = " ".join(part for part in (str(self.status or ""), self.code) if part)
        return ": ".join(part for part in (named, self.detail) if part)


class RequestFailed(Exception):
    """What a client adapter raises; it never leaves the store."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def parse_retry_after(header: str | None) -> float:
    """The seconds of a `Retry-After` header, within reason; 0 without one, and for the form that is a date."""
    if header is None or not header.strip().isdecimal():
        return 0.0
    return min(float(header.strip()), _MOST_RETRY_AFTER_SECONDS)


def broken_client(error: Exception, told: str, library: str, *, sent: bool) -> tuple[str, str] | None:
    """Return code and detail if the error comes from the client library and not from the store; else None.

    Args:
        error: what the library raised.
        told: its text, free of secrets.
        library: the client library.
        sent: whether the request may have been on its way: aiohttp raises AttributeError when a connection is lost.
    """
    if not isinstance(error, (*_PROGRAMMING_ERRORS, AttributeError)):
        return None
    code = SHAKEN_CLIENT if sent and isinstance(error, AttributeError) else BROKEN_CLIENT
    return code, f"the client library failed ({type(error).__name__}: {told}); {upgrade_hint(library)}"


def row_failure(code: str, message: str) -> Failure:
    """The failure of one key in the answer to a bulk delete, where a code stands in for the status."""
    status = {"AccessDenied": 403, "InternalError": 500, "ServiceUnavailable": 503, "SlowDown": 503}.get(code, 400)
    return Failure(status, code, message)


def judge_conditional_write(failure: Failure, place: str) -> NotApplied | InDoubt:
    """The outcome of a conditional write that failed, or the error to raise where asking again would not help."""
    if failure.in_doubt:
        return InDoubt(str(failure), throttled=failure.throttled, retry_after=failure.retry_after)
    if failure.status == 429:
        return NotApplied(str(failure), condition_failed=False, throttled=True, retry_after=failure.retry_after)
    if failure.status == 412 or failure.code in _EXISTS or (failure.status == 404 and failure.code in _NO_OBJECT):
        return NotApplied(str(failure))
    if failure.status == 409:
        return NotApplied(str(failure), condition_failed=False)  # guard: a 409 is not a failed condition
    if failure.status == 501:
        raise Unsupported(
            f"{place}: the store does not enforce conditional writes ({failure}); forebay needs a store that does"
        )
    raise error_for(failure, place)


def error_for(failure: Failure, place: str) -> ForebayError:
    """The error that tells the caller of a read, a list or a delete what to do about it."""
    return _error_without_answer(failure, place) or _error_by_code(failure, place) or _error_by_status(failure, place)


def _error_without_answer(failure: Failure, place: str) -> ForebayError | None:
    if failure.code == "NoCredentials":
        return Denied(
            f"{place}: no credentials ({failure.detail}); pass key and secret in storage_options, set them in the "
            "environment, or pass anon=True for a public bucket"
        )
    if failure.code in {BROKEN_CLIENT, SHAKEN_CLIENT}:
        return Unsupported(f"{place}: {failure.detail}. Install a version that works, or use another client")
    if failure.never_sent:
        return Unavailable(f"{place}: could not connect ({failure}); check endpoint_url, region, network and TLS")
    if failure.status is None:
        return Unavailable(f"{place}: no whole answer ({failure}); try again later, or raise read_timeout")
    return None


def _error_by_code(failure: Failure, place: str) -> ForebayError | None:
    if failure.code in NO_BUCKET:
        hint = "create it, or correct URL or endpoint_url"
        return NotFound(f"{place}: the bucket does not exist ({failure}); {hint}", bucket=True)
    if failure.code in _NO_OBJECT:
        return NotFound(
            f"{place}: there is no such object ({failure.status} {failure.code}); check the URL and the key"
        )
    if failure.code in _WRONG_PLACE or failure.status in {301, 302, 307, 308}:
        return InvalidInput(
            f"{place}: the bucket is in another region or at another endpoint ({failure}); "
            "set region or endpoint_url in storage_options"
        )
    if failure.code in _SLOW:
        return Unavailable(f"{place}: the store is overloaded or the upload too slow ({failure}); try again later")
    return _error_of_credentials(failure, place)


def _error_of_credentials(failure: Failure, place: str) -> ForebayError | None:
    if failure.code == "RequestTimeTooSkewed":
        return Denied(f"{place}: this machine's clock is too far from the store's ({failure}); set the clock")
    if failure.code in _BAD_CREDENTIALS or failure.status == 401:
        return Denied(
            f"{place}: the credentials are not valid ({failure}); "
            "check key, secret and token in storage_options or in the environment"
        )
    return None


def _error_by_status(failure: Failure, place: str) -> ForebayError:
    status = failure.status or 0
    if status == 403:
        return Denied(f"{place}: access denied ({failure}); give these credentials the right to do this, or use others")
    if status == 404:
        # Without the code of a store, nobody said that the object is absent: a web server or a proxy may have spoken.
        # guard: a 404 without a known code is not absence
        return Unavailable(
            f"{place}: the answer was 404 without a known code ({failure}); check that endpoint_url "
            "is that of an object store"
        )
    if status in {405, 501}:
        return Unsupported(f"{place}: the store does not support this operation ({failure}); use another store")
    if status in {408, 409, 429} or status >= 500:
        return Unavailable(f"{place}: the store would not serve ({failure}); try again later")
    if 400 <= status < 500:
        return InvalidInput(f"{place}: the store rejected the request ({failure}); check the URL and storage_options")
    return Unavailable(f"{place}: the answer is not an object store's ({failure}); check endpoint_url")
