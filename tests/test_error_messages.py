"""Every error that a user can get says what is wrong, where, and what to do, and blames nobody without evidence.

The rules are applied to the text of each error as it stands in the code. `test_provoked_errors.py` provokes the common
ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forebay.buffer.base import errors

TOP = Path(__file__).parent.parent
FOLDERS = ("buffer", "runtime", "gc", "forebay", "testing")
SHOWN_BY_CLICK = {"BadParameter", "ClickException", "UsageError"}

VERBS = (
    "acknowledge|add|ask|call|cast|check|choose|close|complete|copy|correct|create|decode|drop|encode|end|evolve|export"
    "|filter|find|free|give|install|keep|leave|let|look|make|migrate|name|open|pass|point|produce|put|raise|read|remove"
    "|rename|repeat|replace|replay|reset|restore|retain|run|see|send|set|split|spread|start|stop|subscribe|try|unset"
    "|update|upgrade|use|wait|write"
)
_STARTS_CLAUSE = r"(?:^|[.;:,(] ?|\b(?:and|or|then|first|to|so|must) )"
WHAT_TO_DO = re.compile(
    rf"{_STARTS_CLAUSE}\s*(?:then |first |or |and )?(?:{VERBS})\b"  # an order: "; close it first"
    r"|\bmust\b|\bexpected\b|\baccepted\b|\bat (?:most|least)\b|\bthe most is\b|\bone of\b|\bneeds?\b"  # what is taken
    r"|\b(?:there (?:is|are):?|have|has|columns are|from) \{|\bare numbered\b",  # what there is to choose from
    re.IGNORECASE,
)
REMEDIES = re.compile(r"\b(?:instead|obstacle|\w*_?hint\w*|_MEND|_REMEDY|_INSTEAD|_ADVICE|_advise|_?suggest)\b")
"""Names that stand for a text with a remedy."""
NAMED = re.compile(r"\w_\w|--\w|\w=|[a-z][A-Z]|\[\[?\w|`\w|\bstorage option|\boptions? \w|://")
"""What names a parameter, an option, a setting or a command."""
BLAME = re.compile(
    r"somebody|anybody|another (?:program|process|consumer|producer|thread|job)|other (?:programs|processes|writers)"
    r"|the collector|lifecycle|your (?:network|store|proxy)"
)
HEDGE = re.compile(r"\bmay\b|\bperhaps\b|\bor\b.*\bor\b|\bcheck (?:that|which)\b")

SPOKEN_OF = {
    "from_ needs a group": "the parameter",
    "another process has replaced the bucket": "caught where it was called",
    "this batch was not prepared": "caught where it was called, and the batch is prepared",
    "the schema has no columns": "the one parameter of the call",
    "there are no columns: give each": "callers put the file's name before it",
    "the call has no": "the one parameter of the call",
    "this buffer ": "callers put the buffer's URL before it",
    "no consumer has claimed this buffer": "callers put the buffer's URL before it",
    "memory ran short while a call": "the handle of that call",
    "every coordinator of this group": "the group that it was called on",
    "this process exports metrics": "the process",
    "the URL ": "only logged, after the URL",
    "the session ": "only logged, after the URL",
    "the store's URL holds credentials": "it cannot be shown without its secrets",
    "this is not a store's URL": "it cannot be shown without its secrets",
    "obstore was used in this process's parent": "the process",
    "the producers of the demo": "the demo is one command",
    "the first runtime of the demo": "the demo is one command",
}
"""Beginnings of texts without a value, and what says where it is."""

NO_REMEDY = {
    "it holds {len(found)} entries; the manifest says": "a finding of `verify`, shown beside the object",
    "batch {batch.sequence} is not there": "a finding of `verify`, shown beside the object",
    "another process has replaced the bucket": "caught where it was called",
    "{self.url}: writer {self.writer_id} is not registered": "caught where it was called",
    "this batch was not prepared": "caught where it was called, and the batch is prepared",
    "{self.url}/{key}: injected into": "a fault that a test has injected",
}
"""Beginnings of texts without a remedy, and the reason."""

EVIDENCE = {
    "file://{self._path} was closed by another": "it was open when this call began",
    "{self.url} was closed by another thread": "it was open when this call began",
    "another process has replaced the bucket": "the manifest names another bucket than before",
    "{self.url} was locked by another process": "SQLite refused the lock until the timeout",
    "{self.url}: a reader or writer in another": "SQLite reports a lock that it could not get",
    "{self.url} is another program's database": "its header names the program",
    "{url}: its schema was changed": "the manifest had other versions each time",
    "the next batch was taken by another thread": "the position moved while this call fetched",
    "{self._url}: batch {sequence} cannot be": "the position moved while this call fetched",
    "{path} was locked by another program": "the lock was refused until the timeout",
    "{self._queue.url}: another consumer opened": "the manifest names the owner, with a higher epoch",
    "{self.url}: another producer of the name": "the manifest has a higher number under this name",
    "{self._store.url}: the collector's floor": "the floor in the manifest is above the name",
    "{self.url} retains {held} bytes": "it asks that the collector runs, and blames nobody",
    "batch {at} was consumed by another": "a version 1 manifest trims only what a consumer has acknowledged",
    "{queue.url}: a version 2 manifest": "says what others would do, not what they have done",
}
"""Beginnings of texts that name somebody else as the cause, and what proves it."""

PASSED_ON = {
    "buffer/consumer.py": "{*self.fence.args}",
    "buffer/coordinator/pipeline.py": "{error}",
    "buffer/coordinator/state.py": "{self.name}: {overdue}",
    "buffer/format/rows.py": "{str(structural)} | row {first}, {said}",
    "buffer/format/schema.py": "{str(misfit)}",
    "buffer/format/type_names.py": "column {name}: {error}",
    "buffer/either/ranges.py": "partition {number}: {error}",
    "buffer/manifest/decode.py": "{location}: {error}",
    "buffer/format/classes.py": "column {path}: {type(kind).__name__.removesuffix('Type')} {why}; {_ADVICE}",
    "buffer/manifest/head.py": "{self.lowest_new_name}",
    "buffer/manifest/queue.py": "{self.url}: {error}",
    "buffer/producer.py": "{str(error)}",
    "buffer/store/choice.py": "{error} (obstore was not used: {obstacle})",
    "buffer/store/file.py": "{str(error)}",
    "buffer/store/remote.py": "{str(error)}",
    "buffer/topic/consumer.py": "{*self._fenced.args}",
    "buffer/topic/producer.py": "{str(error)}",
    "buffer/write/formats.py": "{url}: {error}",
    "buffer/write/upload.py": "{error} | {short}",
    "runtime/catalog/catalog.py": "{follower.name(number)}, offset {offset}: {pending.refusal}",
    "runtime/catalog/model.py": "it is no {event.kind}: {error}",
    "runtime/decoders.py": "{message}",
    "runtime/sinks/delta.py": "{self._judge_failure(error).reason} | {self.url}: {error} | {self._reason(error)}",
    "runtime/sinks/iceberg.py": "{self._describe(error)} | {self.table}: {error}",
    "runtime/spark/reading/listing.py": "{queue.store.url}: {error}",
    "runtime/spark/types.py": "column {field.name}: {error}",
    "forebay/cli/job.py": "{path}: {error}",
    "forebay/cli/target.py": "{path}: {error}",
    "testing/faults.py": "{self.url}/{key}: {outcome.reason}",
    "testing/history.py": "{source}: {error}",
}
"""By file, errors that hand on another error's whole text, or a foreign library's, with a place before it."""


@dataclass(frozen=True)
class Message:
    """The text of one error. A value is in braces, as the expression that gives it."""

    file: str
    line: int
    text: str
    adds_remedy: bool
    """Whether what makes the error appends what to do."""

    @property
    def words(self) -> str:
        """The text with empty braces for values."""
        return re.sub(r"\{[^{}]*\}", "{}", self.text)

    @property
    def is_passed_on(self) -> bool:
        return self.text in PASSED_ON.get(self.file, "").split(" | ")

    def is_in(self, reviewed: dict[str, str]) -> bool:
        return self.text.startswith(tuple(reviewed))

    def __str__(self) -> str:
        return f"\n{self.file}:{self.line}: {self.text}"


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.IfExp):
        return f"{text_of(value.body)}; {text_of(value.orelse)}"
    return "{" + re.sub(r"[{}]", "", ast.unparse(value)) + "}"


def called(node: ast.AST) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""


def public_errors(trees: dict[str, ast.Module]) -> set[str]:
    """Names of forebay's errors and of every class that is made from one."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    while more := {node.name for node in classes if known & {getattr(base, "id", "") for base in node.bases}} - known:
        known |= more
    return known


def find_messages() -> list[Message]:
    files = [path for folder in FOLDERS for path in sorted((TOP / folder).rglob("*.py"))]
    trees = {path.relative_to(TOP).as_posix(): ast.parse(path.read_text()) for path in files}
    makers = public_errors(trees) | SHOWN_BY_CLICK | {"damaged"}
    return [
        Message(file, node.lineno, text_of(node.args[0]), adds_remedy=called(node) == "damaged")
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in makers and node.args
    ]


def listed(messages: Iterable[Message]) -> str:
    return "".join(map(str, messages))


MESSAGES = find_messages()
OWN = [message for message in MESSAGES if not message.is_passed_on]


def test_most_errors_of_the_package_are_found() -> None:
    assert len(OWN) > 500


def test_every_error_says_something_of_its_own_or_hands_on_what_was_reviewed() -> None:
    own = re.compile(r"[a-z]{2,} .*[a-z]{2,}")
    assert not listed(message for message in OWN if not (message.adds_remedy or own.search(message.words)))


def test_every_error_begins_with_what_is_wrong() -> None:
    """Not with an order, which a reader cannot place, nor with a capital, since a place often stands before it."""
    begins_with_order = re.compile(rf"(?:please|{VERBS}) (?!must|may|was|\{{)", re.IGNORECASE)
    assert not listed(message for message in OWN if begins_with_order.match(message.text))
    assert not [
        message for message in OWN if re.match(r"[A-Z][a-z]+ (?!needs)", message.text) and "Spark" not in message.text
    ]


def test_every_error_says_where() -> None:
    nowhere = [message for message in OWN if "{" not in message.text and not NAMED.search(message.text)]
    assert not listed(message for message in nowhere if not message.is_in(SPOKEN_OF))


def test_every_error_says_what_to_do_or_what_is_accepted() -> None:
    helpless = [
        message
        for message in OWN
        if not (message.adds_remedy or WHAT_TO_DO.search(message.words) or REMEDIES.search(message.text))
    ]
    assert not listed(message for message in helpless if not message.is_in(NO_REMEDY))


def test_no_error_blames_another_component_without_evidence() -> None:
    blaming = [message for message in OWN if BLAME.search(message.words) and not HEDGE.search(message.words)]
    assert not listed(message for message in blaming if not message.is_in(EVIDENCE))


def test_every_reviewed_exception_is_still_needed() -> None:
    reviewed = {**SPOKEN_OF, **NO_REMEDY, **EVIDENCE}
    assert not [start for start in reviewed if not any(message.text.startswith(start) for message in OWN)]
    told = {(message.file, message.text) for message in MESSAGES}
    passed_on = [(file, text) for file, texts in PASSED_ON.items() for text in texts.split(" | ")]
    assert not [each for each in passed_on if each not in told]


def test_damage_is_reported_with_what_to_do() -> None:
    assert str(errors.damaged("s3://lake/clicks/manifest: 3 bytes")).endswith("; restore it (docs/operations.md)")
