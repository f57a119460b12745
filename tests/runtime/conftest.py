"""Puts this folder on the path, so that tests can share how buffers are filled."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
