"""How long to wait between two looks at something that may change."""

from __future__ import annotations

POLL_FLOOR = 0.05
"""Seconds until the first look after one that found nothing."""
