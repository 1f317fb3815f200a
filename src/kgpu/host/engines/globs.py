"""Path patterns as Go's ``filepath.Glob`` reads them: ``*`` and ``?`` stay within one folder's name."""

from __future__ import annotations

import fnmatch
import re


def matches(pattern: str, path: str) -> bool:
    """Whether the path fits the pattern, part by part."""
    wanted, given = pattern.split("/"), path.split("/")
    return len(wanted) == len(given) and all(map(_part, wanted, given))


def _part(pattern: str, name: str) -> bool:
    return re.fullmatch(fnmatch.translate(pattern.replace("[^", "[!")), name) is not None
