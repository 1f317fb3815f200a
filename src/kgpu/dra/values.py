"""Attributes and capacities of devices from plain values, in the API's forms. Pure.

A text that is longer than the API takes is cut; a version that is none is left out, and so is what is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from kgpu.base.quantity import Format, Quantity
from kgpu.dra.model import AttributeKind, DeviceAttribute

MAX_TEXT: Final = 64
"""Bytes of a text attribute that the API takes."""
_DIGITS: Final = 32
_MIB: Final = 1 << 20


def text_of(text: str) -> DeviceAttribute:
    """A text."""
    return DeviceAttribute(text.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore"))


def number_of(number: int) -> DeviceAttribute:
    """A whole number."""
    return DeviceAttribute(number, AttributeKind.INT)


def flag_of(flag: bool) -> DeviceAttribute:
    """True or false."""
    return DeviceAttribute(flag, AttributeKind.BOOL)


def texts_of(texts: Mapping[str, str]) -> dict[str, DeviceAttribute]:
    """Those of the texts that are not empty, by name."""
    return {name: text_of(text) for name, text in texts.items() if text}


def versions_of(versions: Mapping[str, str]) -> dict[str, DeviceAttribute]:
    """Those of the texts that are versions, by name."""
    found = {name: semver(text) for name, text in versions.items()}
    return {name: DeviceAttribute(version, AttributeKind.VERSION) for name, version in found.items() if version}


def semver(version: str) -> str:
    """A version of up to three numbers as semver, ``580.95.05`` as ``580.95.5``; "" for anything else."""
    numbers = version.split(".")
    if len(numbers) > 3 or not all(number.isascii() and number.isdecimal() for number in numbers):
        return ""
    made = ".".join([str(int(number[:_DIGITS])) for number in numbers] + ["0"] * (3 - len(numbers)))
    return made if len(made) <= MAX_TEXT else ""


@functools.lru_cache(1024)
def amount_of(count: int) -> str:
    """A quantity."""
    return str(Quantity.of(count))


@functools.lru_cache(1024)
def bytes_of(mib: int) -> str:
    """A quantity of bytes, from MiB."""
    return str(Quantity.of(mib * _MIB, Format.BINARY))
