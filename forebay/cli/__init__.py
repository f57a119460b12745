"""The `forebay` command: what can be done with a buffer from a shell.

Each command is in a module of its own that is loaded when it is called: `forebay --help` loads none of them, and none
loads Spark unless it runs it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from forebay.buffer.clock import Clock

INTERRUPTED: Final = 130
_FAILED: Final = 2

_COMMANDS: Final = {
    "demo": ("demo", "watch the whole thing at work, on this machine"),
    "produce": ("produce", "write lines of a file or of standard input"),
    "consume": ("consume", "print what follows, and acknowledge it"),
    "tail": ("consume", "print the newest entries; changes nothing"),
    "run": ("run", "run the parallel runtime, as a TOML file says"),
    "ls": ("stat", "list the buffers and topics in a folder"),
    "stat": ("stat", "show depth, bytes, rate and the lag of every group"),
    "groups": ("groups", "list, create, reset and delete named readers"),
    "manifest": ("manifest", "dump a manifest as JSON"),
    "batch": ("manifest", "print the entries of one batch"),
    "gc": ("gc", "delete what every reader has read, and what nobody ever listed"),
    "verify": ("verify", "check that everything a buffer lists is there and intact"),
    "migrate": ("migrate", "give a version 1 buffer a version 2 manifest"),
    "events": ("events", "list and follow the topics of an event log"),
    "objects": ("events", "tell what happened to an object"),
    "ui": ("ui", "serve a page that shows a buffer at work"),
    "doctor": ("doctor", "check this machine, the credentials and the store"),
    "bench": ("bench", "measure this store: forebay beside plain puts and gets"),
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
    debug: bool = False


class _Commands(click.Group):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"forebay.cli.{_COMMANDS[cmd_name][0]}"), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - the table above says so
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before click sees it, which would print an empty line
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)

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

Options can be set by FOREBAY_COMMAND_OPTION too, such as FOREBAY_GC_GRACE=300, and in a TOML file with a table for each
command (see --config). Exit status: 0 done, 1 something was found or failed, 2 wrong usage or it cannot be done, 130
interrupted.""",
)
@click.version_option(package_name="forebay")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings in TOML: [storage_options] for every command, and a table for each, such as [gc] grace = 300.",
)
@click.option("--debug", is_flag=True, help="Show the whole trace of an error.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, debug: bool) -> None:
    """An ingestion buffer on object storage: write, read, watch and mend it from a shell."""
    settings = _read_settings(config) if config is not None else {}
    options = settings.pop("storage_options", {})
    ctx.default_map = settings
    ctx.obj = Session(clock=ctx.obj, storage_options=options, debug=debug)


def main(arguments: list[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run a command, and return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        status = cli.main(given, prog_name="forebay", standalone_mode=False, obj=clock)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return _FAILED
    except click.ClickException as error:
        error.show()
        return _FAILED
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, as `| head` does; Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if "--debug" in given:
            raise
        return _explain(error)
    return status if isinstance(status, int) else 0


def _explain(error: Exception) -> int:
    from forebay.buffer.errors import ForebayError  # noqa: PLC0415 - loads Arrow, which --help does without
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
        raise click.BadParameter(f"{path} is no TOML file: {error}", param_hint="--config") from error
    unknown = sorted(set(settings) - set(_COMMANDS) - {"storage_options"})
    if unknown or not all(isinstance(table, dict) for table in settings.values()):
        raise click.BadParameter(
            f"{path} has {', '.join(unknown) or 'values outside tables'}: there are tables [storage_options] and one "
            "for each command, such as [gc]",
            param_hint="--config",
        )
    return settings
