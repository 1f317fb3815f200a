"""The price list in force, as the Deployment ``kgpu-usage`` serves it, so that ``kgpu usage`` counts with the same one.

It is JSON with the list's own text, whose name says how it is read. Reading is strict and bounded, as it comes over the
network.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kgpu.base import typed
from kgpu.base.errors import UserError
from kgpu.base.printable import one_line

VERSION: Final = 1
PRICES_PATH: Final = "/usage/prices"
MAX_TEXT: Final = 1 << 20
"""Characters of a list: a ConfigMap takes no more than a MiB."""


class PricesAnswerError(UserError):
    """What ``kgpu-usage`` has answered is no price list."""


class PricesSaid(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """``source`` is where the list is from, ``text`` the list, both "" where none is given: kgpu's own is in force
    alone. ``problem`` is why a newer list is not in force.
    """

    version: int
    source: Annotated[str, Meta(max_length=1024)] = ""
    text: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    problem: Annotated[str, Meta(max_length=4096)] = ""


def encode(said: PricesSaid) -> bytes:
    """The answer."""
    return msgspec.json.encode(said)


def decode(text: str, *, place: str) -> PricesSaid:
    """What ``place`` has answered. Raises PricesAnswerError."""
    try:
        said = typed.decode(text, PricesSaid)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise PricesAnswerError(f"{place}: {one_line(str(error), 200)}", "a price list", _REMEDY) from error
    if said.version != VERSION:
        raise PricesAnswerError(f"{place}: version {said.version}", f"version {VERSION}", _REMEDY)
    return said


_REMEDY: Final = "see that kgpu-usage is of this release of kgpu"
