"""The table of what a failed request means for a conditional write."""

from __future__ import annotations

import pytest

from forebay.buffer.base.errors import Denied, InvalidInput, NotFound, Unavailable, Unsupported
from forebay.buffer.store import Applied, InDoubt, NotApplied
from forebay.buffer.store.failures import Failure, judge_conditional_write, parse_retry_after


@pytest.mark.parametrize(
    ("failure", "condition_failed"),
    [
        (Failure(412, "PreconditionFailed"), True),
        (Failure(412), True),
        (Failure(404, "NoSuchKey"), True),
        (Failure(409, "BlobAlreadyExists"), True),
        (Failure(409, "ConditionalRequestConflict"), False),
        (Failure(429), False),
        (Failure(429, "SlowDown"), False),
    ],
)
def test_a_judged_or_refused_write_is_not_applied(failure: Failure, condition_failed: bool) -> None:
    outcome = judge_conditional_write(failure, "s3://b/k")

    assert isinstance(outcome, NotApplied)
    assert outcome.condition_failed is condition_failed


@pytest.mark.parametrize(
    "failure",
    [
        Failure(None),
        Failure(200),
        Failure(408),
        Failure(500),
        Failure(503, "SlowDown"),
        Failure(400, "RequestTimeout"),
        Failure(599),
    ],
)
def test_a_write_without_a_clear_answer_is_in_doubt(failure: Failure) -> None:
    assert isinstance(judge_conditional_write(failure, "s3://b/k"), InDoubt)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 409, 412, 429, 500, 501])
def test_any_answer_to_a_request_that_may_have_been_sent_twice_is_in_doubt(status: int) -> None:
    assert isinstance(judge_conditional_write(Failure(status, sent_once=False), "s3://b/k"), InDoubt)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(None, never_sent=True, sent_once=False), Unavailable),
        (Failure(None, "NoCredentials", never_sent=True), Denied),
        (Failure(404, "NoSuchBucket"), NotFound),
        (Failure(404), Unavailable),
        (Failure(401), Denied),
        (Failure(403, "AccessDenied"), Denied),
        (Failure(400, "InvalidArgument"), InvalidInput),
        (Failure(301), InvalidInput),
        (Failure(405), Unsupported),
        (Failure(501), Unsupported),
    ],
)
def test_a_write_that_was_certainly_not_applied_raises(failure: Failure, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="s3://b/k"):
        judge_conditional_write(failure, "s3://b/k")


@pytest.mark.parametrize(
    ("failure", "throttled"),
    [
        (Failure(429, retry_after=3.0), True),
        (Failure(503, "SlowDown", retry_after=3.0), True),
        (Failure(503, retry_after=3.0), False),
        (Failure(409, "ConditionalRequestConflict"), False),
        (Failure(412), False),
    ],
)
def test_a_store_that_is_asked_too_often_is_told_from_one_that_fails(failure: Failure, throttled: bool) -> None:
    outcome = judge_conditional_write(failure, "s3://b/k")

    assert not isinstance(outcome, Applied)
    assert outcome.throttled is throttled
    assert outcome.retry_after == failure.retry_after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0.0), ("7", 7.0), (" 2 ", 2.0), ("86400", 30.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("-1", 0.0)],
)
def test_retry_after_is_a_number_of_seconds_within_reason(header: str | None, seconds: float) -> None:
    assert parse_retry_after(header) == seconds
