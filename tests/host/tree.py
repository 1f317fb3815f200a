"""Driver trees for tests: files of nothing, links, device node stand-ins."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from kgpu.formats.simulated import MAGIC


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, place)


def simulated(root: Path) -> Path:
    """What marks a simulated root: a state file of that kind, and /sys made of plain files."""
    size = 4096
    write(root, "/state", struct.pack("=QII", MAGIC, 1, size).ljust(size, b"\0"))
    (root / "sys/bus").mkdir(parents=True, exist_ok=True)
    return root


def driver(root: Path, folder: str = "/usr/lib/x86_64-linux-gnu", version: str = "550.54.15") -> Path:
    """A small driver: two libraries with their links, nvidia-smi, the control nodes."""
    for stem in ("libcuda", "libnvidia-ml"):
        library(root, folder, stem, version)
    touch(root, "/usr/bin/nvidia-smi")
    touch(root, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia0")
    return root


def write(root: Path, path: str, data: bytes | str = b"") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data.encode() if isinstance(data, str) else data)
    return target


def elf(*, soname: str = "", interpreter: str = "", bits: int = 64, machine: int = 62) -> bytes:
    """An ELF file with nothing but what the loader needs to know of it. The load segment maps the file at 0x1000."""
    base, header, entry = 0x1000, 64, 56
    if bits == 32:
        return b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(32)
    text = b"\0" + soname.encode() + b"\0"
    strings = header + 3 * entry
    dynamic = strings + len(text) + -len(text) % 8
    name = dynamic + 48
    table = struct.pack("<QQQQQQ", 5, base + strings, 14 if soname else 0, 1, 0, 0)
    size = name + len(interpreter) + 1
    rows = [
        struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000),
        struct.pack("<IIQQQQQQ", 2, 6, dynamic, base + dynamic, 0, len(table), len(table), 8),
        struct.pack("<IIQQQQQQ", 3 if interpreter else 0, 4, name, base + name, 0, len(interpreter) + 1, 0, 1),
    ]
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 3, machine, 1)
    head += struct.pack("<QQQIHHHHHH", 0, header, 0, 0, header, entry, len(rows), 0, 0, 0)
    return (head + b"".join(rows) + text).ljust(dynamic, b"\0") + table + interpreter.encode() + b"\0"


def library(root: Path, folder: str, stem: str, version: str, *, soname: str = "", bits: int = 64) -> str:
    """A versioned library with its SONAME, and the link of that name beside it."""
    asked = soname or f"{stem}.so.1"
    path = f"{folder.rstrip('/')}/{stem}.so.{version}"
    write(root, path, elf(soname=asked, bits=bits, machine=62 if bits == 64 else 3))
    if asked != f"{stem}.so.{version}":
        link(root, f"{folder.rstrip('/')}/{asked}", f"{stem}.so.{version}")
    return path
