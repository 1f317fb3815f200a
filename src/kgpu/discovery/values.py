"""Makes label values that the API server accepts from any hardware name.

``sanitise`` is feature discovery's rule; the limits on length and on the first and last character, which it lacks, are
added so that one odd device name can't make the API server refuse every label of the node.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LENGTH: Final = 63

_DROPPED: Final = re.compile(r"[^A-Za-z0-9\-_. ]")
_ENDS: Final = "-_. "


def sanitise(text: str) -> str:
    """Drop characters that a label value can't have and join words with dashes; the result may still be too long."""
    return "-".join(_DROPPED.sub("", text).split())


def legal(text: str) -> str:
    """A legal label value: sanitised, at most 63 characters, beginning and ending with a letter or digit, or empty."""
    return sanitise(text).strip(_ENDS)[:MAX_LENGTH].strip(_ENDS)


def joined(*parts: str) -> str:
    """The parts joined with dashes as a legal value; if too long, the first part is cut, as the others
    carry meaning.
    """
    first, *rest = [part for part in map(legal, parts) if part] or [""]
    ending = "".join(f"-{part}" for part in rest)
    room = max(MAX_LENGTH - len(ending), 0)
    return legal(first[:room].rstrip(_ENDS) + ending)
