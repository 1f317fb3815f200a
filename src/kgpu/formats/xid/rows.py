"""The types of the catalogue's rows."""

from __future__ import annotations

from typing import NamedTuple

from kgpu.base.advice import Severity
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.buckets import Bucket

PRODUCTS = {"A": "A100", "H": "H100", "B": "B100", "G": "GB200"}


class XidRow(NamedTuple):
    """One Xid. ``what`` it means and its likely ``cause`` are kgpu's words.

    ``immediate`` and ``investigate`` are NVIDIA's buckets. ``on`` has a letter per product of the catalogue
    (``PRODUCTS``), "" for a number that drivers for Ampere and later do not use. ``linked`` is the driver's major
    version from which Xid 154 follows with the driver's own verdict, 0 when none does. ``action``, ``severity`` and
    ``advice`` are set where they differ from the bucket's.
    """

    code: int
    mnemonic: str
    what: str
    immediate: Bucket
    investigate: Bucket
    on: str
    linked: int
    cause: str
    action: Action | None = None
    severity: Severity | None = None
    advice: str = ""

    @property
    def used(self) -> bool:
        """False for numbers that are left from older drivers."""
        return bool(self.on)

    @property
    def products(self) -> tuple[str, ...]:
        """The catalogue's products that can report it."""
        return tuple(PRODUCTS[letter] for letter in self.on)


class Sxid(NamedTuple):
    """One SXid of an NVSwitch. ``kind`` is the guide's: non-fatal, fatal (to a port), always-fatal (to the fabric)."""

    code: int
    what: str
    kind: str
    bucket: Bucket
    cause: str
    action: Action | None = None
    advice: str = ""
