"""`forebay ui`: the dashboard."""

from __future__ import annotations

from contextlib import ExitStack

import click

from forebay.buffer.base.errors import NotFound
from forebay.buffer.store import open_store
from forebay.cli.output import write_note
from forebay.cli.target import Target, open_log, takes_url
from forebay.ui import Dashboard


@click.command(
    epilog="""\
\b
examples:
  forebay ui s3://lake/clicks
  forebay ui s3://lake/clicks --events s3://lake/events --dead-letters s3://lake/clicks-dead
  FOREBAY_UI_TOKEN=$(openssl rand -hex 16) forebay ui s3://lake/clicks --host 0.0.0.0

The page only reads. It is served to this machine only, unless --host names another address, which needs a token. Set
the token in FOREBAY_UI_TOKEN: other users of this machine can see --token in the list of processes."""
)
@takes_url
@click.option("--events", metavar="LOG", envvar="FOREBAY_EVENT_LOG", help="The event log of collectors and runtimes.")
@click.option("--port", type=int, default=8090, show_default=True, help="Port of the page; 0 picks a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve at.")
@click.option(
    "--token",
    envvar="FOREBAY_UI_TOKEN",
    metavar="TEXT",
    help="The secret that a viewer needs. Better set in FOREBAY_UI_TOKEN, which the list of processes does not show.",
)
@click.option("--dead-letters", metavar="URL", help="The buffer of a runtime's dead letters.")
def ui(
    target: Target, *, events: str | None, port: int, host: str, token: str | None, dead_letters: str | None
) -> None:
    """Serve a page that shows a buffer or topic at work: depth, lag, rates, batches, collector, dead letters."""
    store = target.open()
    try:
        target.is_topic(store)
    except NotFound as error:
        if error.bucket:
            raise
        write_note(f"nothing was written to {target.url} yet: the page waits for it. Check the URL if this lasts")
    with ExitStack() as opened:
        dashboard = Dashboard(
            store,
            host=host,
            port=port,
            token=token,
            manifest_path=target.manifest_path,
            events=None if events is None else opened.enter_context(open_log(events, target.storage_options)),
            dead_letters=None if dead_letters is None else open_store(dead_letters, target.storage_options),
            clock=target.clock,
        )
        opened.enter_context(dashboard).start()
        write_note(f"{target.url} is shown at {dashboard.url} (Ctrl-C ends it)")
        dashboard.wait()
