"""Run a document: `python tests/run_page.py docs/quickstart.md`, in an empty folder.

A page is one program. In the order in which they stand there,

- a block ```` ```python ```` runs, with the names that the blocks before it have made;
- a block ```` ```console ```` has each line that begins with `$ ` run by the shell. It must succeed; lines below it, if
  any, are what it prints, where `…` stands for anything;
- a block of any language with a title, as in ```` ```toml title=job.toml ````, becomes a file of that name.

Others are only shown. Where a page says `/tmp`, it gets the folder that this runs in. The bucket `s3://lake` is that of
the server in AWS_ENDPOINT_URL, which `forebay dev` prints with all else that is needed; without one, it is a folder. In
a page that names the endpoint `http://127.0.0.1:8333`, the server in AWS_ENDPOINT_URL takes its place. Such a page, as
docs/spark.md, does not run without a server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ENDPOINT = "http://127.0.0.1:8333"
FENCE = re.compile(r"^```(\w*)(?: title=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(text: str) -> list[tuple[str, str, str]]:
    """Return each block's language, title and text."""
    return FENCE.findall(text)


def is_program(text: str) -> bool:
    """Whether there is anything to run on a page."""
    return any(title or language in ("python", "console") for language, title, _ in fences(text))


def make_program(text: str) -> str:
    """Return the page as Python whose lines have the numbers that they have on the page."""
    lines = [""] * text.count("\n")
    for found in FENCE.finditer(text):
        language, title, body = found.groups()
        first = text.count("\n", 0, found.start())
        if title:
            lines[first] = f"_write({title!r}, {body!r})"
        elif language == "python":
            lines[first + 1 : first + 1 + body.count("\n")] = body.splitlines()
        elif language == "console":
            for command in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                line = first + 1 + body.count("\n", 0, command.start())
                lines[line] = f"_run({command.group(1)!r}, {command.group(2)!r})"
    return "\n".join(lines)


def write_file(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run_command(command: str, expected: str) -> None:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
    pattern = re.escape(expected.strip()).replace("…", ".*?")
    said = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    assert not expected or re.fullmatch(pattern, said, re.DOTALL), f"{command}\nsaid\n{said}\ninstead of\n{expected}"


def main(page: str) -> None:
    text = Path(page).read_text()
    here, endpoint = str(Path.cwd()), os.environ.get("AWS_ENDPOINT_URL")
    places = {"/tmp": here, **({ENDPOINT: endpoint} if endpoint else {"s3://lake": f"file://{here}"})}
    text = re.sub(rf"(?<![\w.])/tmp(?=/)|{ENDPOINT}|s3://lake", lambda found: places.get(found[0], found[0]), text)
    # Commands are those of this Python, and print as to a file.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.update(PYSPARK_PYTHON=sys.executable, COLUMNS="120", NO_COLOR="1")
    names = {"__name__": "__main__", "_run": run_command, "_write": write_file}
    exec(compile(make_program(text), page, "exec"), names)


if __name__ == "__main__":
    main(*sys.argv[1:])
