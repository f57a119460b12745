"""`forebay dead-letters`: what a runtime put aside, and how it goes back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.either.dispatch import is_topic
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store
from forebay.cli.output import as_json_value, escape, write_json, write_line, write_note, write_table
from forebay.cli.target import Target, json_option, options_for, takes_url
from forebay.runtime.letter_replay import Replay
from forebay.runtime.letters import find_letter, list_letters

if TYPE_CHECKING:
    from forebay.runtime.letters import KeptLetter

_LONGEST_REASON = 80


@click.group(
    "dead-letters",
    epilog="""\
\b
examples:
  forebay dead-letters list s3://lake/clicks-dead
  forebay dead-letters show s3://lake/clicks-dead 12.0
  forebay dead-letters replay s3://lake/clicks-dead --dry-run
  forebay dead-letters replay s3://lake/clicks-dead
  forebay dead-letters replay s3://lake/clicks-dead 12.0 12.5 --to s3://lake/clicks-repaired""",
)
def dead_letters() -> None:
    """List, show and replay dead letters: entries that a runtime could not decode or commit."""


@dead_letters.command(
    "list",
    epilog="""\
\b
columns:
  letter   the name of the letter, for `show` and `replay`
  time     when the letter was written
  source   the buffer that the runtime read
  group    the group that the runtime read for
  batch    the sequence of the batch in the source
  entries  which entries of the batch the letter holds, or "the object"
  reason   why the runtime could not use them

\b
examples:
  forebay dead-letters list s3://lake/clicks-dead""",
)
@takes_url
@json_option
def list_command(target: Target, *, as_json: bool) -> None:
    """Show every dead letter. Changes nothing.

    URL is the buffer of dead letters.
    """
    found = list(list_letters(_queue(target)))
    if as_json:
        for kept in found:
            write_json(_describe(kept))
    elif found:
        heads = ("letter", "time", "source", "group", "batch", "entries", "reason")
        write_table(heads, [_row(kept) for kept in found])
    else:
        write_line("no dead letters")


@dead_letters.command()
@takes_url
@click.argument("letter")
@json_option
def show(target: Target, *, letter: str, as_json: bool) -> None:
    """Print one dead letter and its entries.

    LETTER is its name in the first column of `forebay dead-letters list`. With --json, one object for each entry.
    """
    kept, batch = find_letter(_queue(target), letter)
    indexes = kept.letter.indexes or range(kept.letter.first_entry or 0, (kept.letter.last_entry or 0) + 1)
    for index, entry in zip(indexes, kept.entries(batch), strict=True):
        if as_json:
            write_json({**_describe(kept), "index": index, **as_json_value("value", entry)})
            continue
        if index == indexes[0]:
            for name, value in _describe(kept).items():
                if name != "indexes":  # they are below
                    write_line(f"{name + ':':12}{escape(str(value))}")
        write_line("" if kept.letter.first_entry is None else f"\nentry {index}:")
        write_line(escape(entry))


@dead_letters.command(
    epilog="""\
Without LETTERs, the command replays only letters that were not replayed before: a group of the dead-letter buffer
remembers them. If a replay is interrupted, repeat it: nothing is written twice, except perhaps in a version 1 buffer.
LETTERs that you name are replayed each time.

All groups of the source read the entries again, including groups that could decode them the first time. To avoid that,
write to another buffer with --to. Letters that hold a whole object instead of entries are left out.

\b
examples:
  forebay dead-letters replay s3://lake/clicks-dead --dry-run
  forebay dead-letters replay s3://lake/clicks-dead
  forebay dead-letters replay s3://lake/clicks-dead 12.0 --to s3://lake/clicks-repaired"""
)
@takes_url
@click.argument("letters", nargs=-1, metavar="[LETTER]...")
@click.option("--to", metavar="URL", help="The buffer that gets the entries; by default the one they came from.")
@click.option(
    "--group", default="replay", show_default=True, metavar="NAME", help="The group that remembers what was replayed."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@json_option
def replay(
    target: Target, *, letters: tuple[str, ...], to: str | None, group: str, dry_run: bool, as_json: bool
) -> None:
    """Write the entries of dead letters back to their source.

    URL is the buffer of dead letters. LETTERs are named as in `forebay dead-letters list`; by default all that were not
    replayed yet.
    """

    def open_producer(url: str, writer_id: str | None) -> Producer:
        store = open_store(url, options_for(url, target.storage_options))
        if is_topic(store, must_exist=to is None):
            raise InvalidInput(f"{url} is a topic: name one of its partitions with --to")
        return Producer(store, writer_id=writer_id, clock=target.clock)

    if to is not None:
        to = open_store(to, options_for(to, target.storage_options)).url
    work = Replay(_queue(target), to, open_producer, group=group, clock=target.clock)
    if letters:
        done = work.preview_named(letters) if dry_run else work.run_named(letters)
    else:
        done = work.preview() if dry_run else work.run()
    replayed = entries = 0
    for found in done:
        replayed += not found.skipped
        entries += 0 if found.skipped else found.kept.letter.count
        if as_json:
            write_json({**_describe(found.kept), "target": found.target or None, "skipped": found.skipped or None})
        elif found.skipped:
            write_line(f"letter {found.kept.name}: left out, {found.skipped}")
        else:
            held = counted(found.kept.letter.count, "entry")
            write_line(f"letter {found.kept.name}: {held} to {found.target}{' (dry run)' * dry_run}")
    would = "would have replayed" if dry_run else "replayed"
    write_note(f"{would} {counted(replayed, 'letter')}, {counted(entries, 'entry')}")


def _queue(target: Target) -> Queue:
    return Queue(target.one_buffer(), target.manifest_path, role="dead-letters", clock=target.clock)


def _describe(kept: KeptLetter) -> dict[str, Any]:
    letter = kept.letter
    return {
        "letter": kept.name,
        "time": datetime.fromtimestamp(kept.time_ms / 1000, UTC).isoformat(timespec="seconds"),
        "source": letter.url,
        "group": letter.group,
        "batch": letter.sequence,
        "location": letter.location,
        "entries": letter.place,
        "indexes": letter.indexes,
        "reason": letter.error,
    }


def _row(kept: KeptLetter) -> tuple[str, ...]:
    shown = _describe(kept)
    reason = " ".join(escape(shown["reason"]).split())
    short = reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"
    names = ("letter", "time", "source", "group", "batch", "entries")
    return (*(str(shown[name]) or "-" for name in names), short)
