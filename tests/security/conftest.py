"""Puts this folder on the path, so that its tests can share who reads a buffer."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
