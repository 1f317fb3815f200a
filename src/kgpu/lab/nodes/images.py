"""Checks a container image's name, with the kubelet's messages; pure. Nothing is ever pulled here."""

from __future__ import annotations

import re
from typing import Final

INVALID: Final = "InvalidImageName"
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_TAIL: Final = r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
# The grammar of github.com/distribution/reference.
_REFERENCE: Final = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*{_TAIL}", re.ASCII)


def problem(image: str) -> str:
    """The kubelet's message for an invalid image name; "" for a valid one."""
    if _REFERENCE.fullmatch(image):
        return ""
    why = "invalid reference format"
    if _REFERENCE.fullmatch(image.lower()):
        name = re.sub(r"(?::\w[\w.-]*)?(?:@.*)?$", "", image)
        why += f": repository name ({name if '/' in name else f'library/{name}'}) must be lowercase"
    return f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}'
