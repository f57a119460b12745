"""`forebay completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from forebay.cli.output import write_line


@click.command(
    epilog="""\
\b
examples:
  eval "$(forebay completion bash)"            in ~/.bashrc
  eval "$(forebay completion zsh)"             in ~/.zshrc
  forebay completion fish > ~/.config/fish/completions/forebay.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click knows these three
    write_line(found(ctx.find_root().command, {}, "forebay", "_FOREBAY_COMPLETE").source())
