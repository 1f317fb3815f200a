"""Why a figure is not measured on a machine, when that is no failure."""

from __future__ import annotations


class SkippedError(Exception):
    """Its text is the reason."""
