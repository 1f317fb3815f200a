"""Follows symbolic links inside a folder that stands for a root: an absolute link means that root, and none leaves it.

Imported by the hardware child too, so it stays clear of pathlib and dataclasses.
"""

from __future__ import annotations

import os
import stat

MAX_LINKS = 40


def resolve_inside(base: str, inside: str) -> str | None:
    """The real path below ``base`` (begins with ``/``) of the path ``inside`` it; None when it isn't there or links go
    in circles.
    """
    if "\0" in inside:
        return None
    base = base.rstrip("/")
    remedy = [part for part in reversed(inside.split("/")) if part]
    done = ""
    links = 0
    while remedy:
        part = remedy.pop()
        if part == ".":
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        candidate = f"{done}/{part}"
        try:
            mode = os.lstat(base + candidate).st_mode
            target = os.readlink(base + candidate) if stat.S_ISLNK(mode) else ""
        except OSError:
            return None
        if not target:
            done = candidate
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        remedy += [piece for piece in reversed(target.split("/")) if piece]
        if target.startswith("/"):
            done = ""
    return done or "/"
