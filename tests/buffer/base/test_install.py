"""Hints at commands that can be typed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from forebay.buffer.base.install import install_hint, installed_version, upgrade_hint

TOP = Path(__file__).parents[3]
FOLDERS = ("forebay", "buffer", "runtime", "gc", "testing")
SOURCES = [path for folder in FOLDERS for path in (TOP / folder).rglob("*.py")]
EXTRAS = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_hint_is_a_command_for_a_clone() -> None:
    assert install_hint("spark", "java") == 'pip install ".[spark,java]" in a clone of forebay'


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(TOP).as_posix())
def test_no_other_place_spells_how_forebay_is_installed(path: Path) -> None:
    text = path.read_text()
    if path.name != "install.py":
        assert not re.search(r"pip install[^\n]*(forebay\b|\.\[)", text)
    for arguments in re.findall(r"install_hint\(([^)]*)\)", text):
        assert set(re.findall(r"['\"](\w+)['\"]", arguments)) <= EXTRAS.keys()


def test_hint_at_an_upgrade_names_what_is_installed_and_takes_part() -> None:
    hint = upgrade_hint("s3fs")
    assert f"s3fs {installed_version('s3fs')}" in hint
    assert f"aiobotocore {installed_version('aiobotocore')}" in hint
    assert hint.endswith("pip install --upgrade s3fs boto3")
    assert upgrade_hint("obstore").endswith("pip install --upgrade obstore")


def test_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-package-anywhere") is None
