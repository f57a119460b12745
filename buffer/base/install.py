"""What is installed, and the commands that install what is missing or mend what does not fit together."""

from __future__ import annotations

from importlib import metadata
from typing import Final

_COMMAND: Final = 'pip install ".[{extras}]" in a clone of forebay'
"""forebay is on no package index yet. Once it is: `pip install "forebay[{extras}]"`."""

_BELOW: Final = {"s3fs": ("fsspec", "aiobotocore", "botocore", "boto3", "aiohttp")}
"""Packages whose versions decide whether a library works."""
# A newer boto3 brings a botocore that aiobotocore was not made for. Given both names, pip finds versions that fit.
_TOGETHER: Final = {"s3fs": ("boto3",)}


def install_hint(*extras: str) -> str:
    """Return the command that installs forebay with these extras."""
    return _COMMAND.format(extras=",".join(extras))


def installed_version(package: str) -> str | None:
    """Return a package's version; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def upgrade_hint(library: str) -> str:
    """Return what to say of an installed library that fails: the versions that take part, and what to type."""
    versions = {name: installed_version(name) for name in (library, *_BELOW.get(library, ()))}
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    names = [library, *(name for name in _TOGETHER.get(library, ()) if versions.get(name))]
    return f"the versions may not fit together ({found}): pip install --upgrade {' '.join(names)}"
