"""The dashboard: one page that shows a buffer or topic, and changes nothing."""

from __future__ import annotations

from forebay.ui.dashboard import Dashboard

__all__ = ["Dashboard"]
