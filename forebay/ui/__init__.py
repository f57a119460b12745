"""The dashboard: one page that shows a buffer or topic, and changes nothing.

Builds on `forebay.buffer.inspect`, event logs and dead letters.
"""

from __future__ import annotations

from forebay.ui.dashboard import Dashboard

__all__ = ["Dashboard"]
