"""forebay: an ingestion buffer on object storage."""

from __future__ import annotations

from pathlib import Path

# Python started in a checkout's top folder finds this folder before the installed package; the subpackages are beside
# it there, not in it (rfcs/0002).
if not Path(__file__).with_name("buffer").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
