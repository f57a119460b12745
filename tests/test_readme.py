"""The README's programs run as printed, with a folder in the place of the bucket."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forebay

README = (Path(__file__).parent.parent / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program_in_the_readme_runs(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/clicks"
    with forebay.Producer(url) as producer:
        producer.produce(b'{"page": "/from-before"}')
    exec(re.sub(r"(s3://lake|file:///tmp)/clicks", url, program), {})
    with forebay.Producer(url) as producer:
        producer.produce(b"still works")


def test_first_program_prints_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(PROGRAMS[0].replace("s3://lake/clicks", f"file://{tmp_path}/clicks"), {})
    assert capsys.readouterr().out.splitlines() == ["""0 b'{"page": "/"}'""", """0 b'{"page": "/cart"}'"""]


def test_every_file_that_the_readme_points_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
