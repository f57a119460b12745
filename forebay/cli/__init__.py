"""The `forebay` command: what can be done with a buffer from a shell.

Each command is in a module of its own, which is loaded when the command is called. So `forebay --help` loads none of
them, and only the commands that use Spark load it.

Builds on all other folders.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.base.clock import Clock

INTERRUPTED: Final = 130
_FAILED: Final = 2
_UNREAD: Final = 141
"""As a shell shows the end by SIGPIPE."""
_TERMINATED: Final = 143

_COMMANDS: Final = {
    "demo": ("demo", "run the whole pipeline on this machine, and check it"),
    "dev": ("dev", "run a local S3 server with a bucket and sample events"),
    "produce": ("produce", "write lines of a file or of standard input"),
    "consume": ("consume", "print the next entries of a group, and acknowledge them"),
    "tail": ("consume", "print the newest entries; changes nothing"),
    "run": ("run", "run the runtime that a TOML file describes"),
    "dead-letters": ("dead_letters", "list, show and replay entries that a runtime could not use"),
    "ls": ("stat", "list the buffers and topics in a folder"),
    "stat": ("stat", "show depth, bytes, rate and the lag of every group"),
    "groups": ("groups", "list, create, reset and delete named readers"),
    "writers": ("writers", "list and forget lasting writers"),
    "schema": ("schema", "show and widen the schema of a typed buffer"),
    "manifest": ("manifest", "dump a manifest as JSON"),
    "batch": ("manifest", "print the entries of one batch"),
    "iceberg": ("iceberg", "find and delete files left in an Iceberg table by failed commits"),
    "gc": ("gc", "delete what every reader has read, and leftover uploads"),
    "verify": ("verify", "check that all batches of a buffer are there and intact"),
    "migrate": ("migrate", "convert a version 1 buffer to version 2"),
    "events": ("events", "print or describe a topic of an event log"),
    "objects": ("events", "show what happened to an object"),
    "ui": ("ui", "serve a web page that shows a buffer at work"),
    "export-metrics": ("export_metrics", "serve depth, lag, owners and orphans of buffers to Prometheus"),
    "doctor": ("doctor", "check this machine, the credentials and the store"),
    "bench": ("bench", "measure forebay on a store, compared with plain puts and gets"),
    "completion": ("completion", "print the completion script of a shell"),
}
"""By name, the module, and what it does in a line."""


@dataclass(frozen=True, slots=True)
class Session:
    """What every command is given."""

    clock: Clock | None = None
    """For tests."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """From the settings file."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM: what Ctrl-C stores and tidies up is stored and tidied up."""


class _Commands(click.Group):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"forebay.cli.{_COMMANDS[cmd_name][0]}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)  # noqa: S101 - the table above says so
        _name_in_environment(command, f"FOREBAY_{cmd_name.replace('-', '_')}")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # before click sees it, which would print an empty line
            click.echo("interrupted", err=True)
            ctx.exit(_TERMINATED if isinstance(error, _Terminated) else INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has gone, as `| head` does; Python would complain again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(_UNREAD)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            ctx.exit(_explain(error))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_module, what) in _COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "FOREBAY",
        "max_content_width": 110,
    },
    epilog="""\
\b
examples:
  forebay demo
  seq 1000 | forebay produce s3://lake/clicks
  forebay consume s3://lake/clicks --group etl --follow
  forebay stat s3://lake/clicks
  forebay COMMAND --help

You can also set options by environment variables named FOREBAY_COMMAND_OPTION, such as FOREBAY_GC_GRACE=300, and in
a TOML file with a table for each command (see --config).

Exit status: 0 success, 1 a problem was found (the command's own help says which), 2 wrong usage or failure, 130
interrupted by Ctrl-C, 141 the output was closed (as by head), 143 ended by SIGTERM.""",
)
@click.version_option(package_name="forebay")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings in TOML: [storage_options] for every command, and one table per command, such as [gc] grace = 300.",
)
@click.option("--debug", is_flag=True, help="Show the whole trace of an error.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, debug: bool) -> None:  # noqa: ARG001 - `invoke` looks at debug
    """An ingestion buffer on object storage: write, read, inspect and repair it from a shell."""
    from forebay.cli.output import log_to_stderr  # noqa: PLC0415 - loads Arrow, which --help does without

    log_to_stderr()
    settings = _read_settings(config) if config is not None else {}
    options = settings.pop("storage_options", {})
    name = ctx.invoked_subcommand or ""
    command = cli.get_command(ctx, name)
    if command is not None and name in settings:
        ctx.default_map = {name: _by_parameter(command, settings[name], f"{config}: [{name}]")}
    ctx.obj = Session(clock=ctx.obj, storage_options=options)


def main(arguments: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run a command, and return its exit status."""
    try:
        with _unwinding_on_sigterm():
            status = cli.main(arguments, prog_name="forebay", standalone_mode=False, obj=clock)
    except click.ClickException as error:
        error.show()
        return _FAILED
    except click.Abort:
        return INTERRUPTED
    if status == _TERMINATED:
        signal.raise_signal(signal.SIGTERM)  # so that the sender sees which signal ended the process
    return status if isinstance(status, int) else 0


@contextmanager
def _unwinding_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind a command as Ctrl-C does, unless somebody has decided otherwise."""

    def terminate(_number: int, _frame: object) -> None:
        raise _Terminated

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _explain(error: Exception) -> int:
    from forebay.buffer.base.errors import ForebayError  # noqa: PLC0415 - loads Arrow, which --help does without
    from forebay.cli.output import write_error  # noqa: PLC0415

    if isinstance(error, ForebayError | OSError):
        write_error(error)
    else:
        write_error(error, f"unexpected {type(error).__name__}: please report it, with what `forebay --debug …` shows")
    return _FAILED


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not a TOML file: {error}; correct it", param_hint="--config") from error
    unknown = sorted(set(settings) - set(_COMMANDS) - {"storage_options"})
    if unknown or not all(isinstance(table, dict) for table in settings.values()):
        raise click.BadParameter(
            f"{path} has {', '.join(unknown) or 'values outside tables'}: use the tables "
            "[storage_options] and one for each command, such as [gc]",
            param_hint="--config",
        )
    return settings


def _long_name(option: click.Option) -> str:
    """What users call an option: `dry_run` for `--dry-run`."""
    return next(name for name in option.opts if name.startswith("--"))[2:].replace("-", "_")


def _name_in_environment(command: click.Command, prefix: str) -> None:
    """Let every option be set by its own name, also where its parameter has another: FOREBAY_CONSUME_FORMAT."""
    for found in command.params:
        if isinstance(found, click.Option) and found.envvar is None:
            found.envvar = f"{prefix}_{_long_name(found)}".upper()
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            _name_in_environment(part, f"{prefix}_{name}")


def _by_parameter(command: click.Command, table: dict[str, Any], where: str) -> dict[str, Any]:
    """A command's settings by the names of its parameters; a misspelt one must not pass for one that is not given."""
    options = {_long_name(found): found.name for found in command.params if isinstance(found, click.Option)}
    parts = command.commands if isinstance(command, click.Group) else {}
    settings: dict[str, Any] = {}
    for key, value in table.items():
        name = options.get(key.replace("-", "_"))
        if key in parts and isinstance(value, dict):
            settings[key] = _by_parameter(parts[key], value, f"{where}.{key}")
        elif name is not None:
            settings[name] = value
        else:
            known = ", ".join(sorted({*options, *parts}))
            raise click.BadParameter(f"{where} has {key}: use one of {known}", param_hint="--config")
    return settings
