"""Recognises a vGPU and reads its host driver from its PCI configuration space. Pure, and safe on any bytes.

Layout: a vendor-specific PCI capability (ID 9) whose bytes 3 and 4 are "VF". From byte 5 on it has records of ID,
length (including the header) and payload; record 0 has ten bytes of host driver version and ten of branch.
"""

from __future__ import annotations

from typing import Final

from kgpu.discovery.model import VgpuFacts

CONFIG_SIZE: Final = 256

_STATUS: Final = 0x06
_HAS_CAPABILITIES: Final = 0x10
_FIRST_CAPABILITY: Final = 0x34
_VENDOR_SPECIFIC: Final = 0x09
_BROKEN_CHAIN: Final = 0xFF
_SIGNATURE: Final = b"VF"
_RECORDS: Final = 5
_DRIVER_RECORD: Final = 0
_VERSION_LENGTH: Final = 10
_BRANCH_LENGTH: Final = 10


def vendor_capability(config: bytes) -> bytes | None:
    """The vendor-specific capability, None if there is none. Raises ValueError for fewer than 256 bytes."""
    if len(config) < CONFIG_SIZE:
        raise ValueError(f"{len(config)} bytes of PCI configuration space, {CONFIG_SIZE} are needed")
    if not config[_STATUS] & _HAS_CAPABILITIES:
        return None
    at, seen = config[_FIRST_CAPABILITY], set[int]()
    while at and at not in seen and at + 2 < len(config):
        seen.add(at)
        kind, following, length = config[at], config[at + 1], config[at + 2]
        if kind == _BROKEN_CHAIN:
            return None
        if kind == _VENDOR_SPECIFIC:
            return config[at : at + length]
        at = following
    return None


def is_vgpu(capability: bytes) -> bool:
    """True for the capability of a virtual GPU."""
    return len(capability) >= _RECORDS and capability[3:_RECORDS] == _SIGNATURE


def host_driver(capability: bytes) -> VgpuFacts | None:
    """The host's driver, None if the records lack it or are truncated."""
    at = _RECORDS
    while at + 2 <= len(capability):
        kind, length = capability[at], capability[at + 1]
        if length < 2 or at + length > len(capability):
            return None
        if kind == _DRIVER_RECORD:
            return _driver(capability[at + 2 : at + length])
        at += length
    return None


def _driver(payload: bytes) -> VgpuFacts | None:
    if len(payload) < _VERSION_LENGTH + _BRANCH_LENGTH:
        return None
    version = payload[:_VERSION_LENGTH]
    branch = payload[_VERSION_LENGTH : _VERSION_LENGTH + _BRANCH_LENGTH]
    return VgpuFacts(*(raw.strip(b"\0").decode("ascii", errors="ignore") for raw in (version, branch)))
