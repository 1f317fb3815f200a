"""The loader's cache: both layouts, any bytes, and drivers that only it knows."""

from __future__ import annotations

import shutil
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.ldcache import CacheEntry, parse_ld_cache
from kgpu.host.root import DriverRoot
from tests.host.tree import driver, write

X86_64, I386, AARCH64 = 0x0303, 0x0003, 0x0A03
Row = tuple[int, str, str]


def cache(rows: list[Row], *, old: bool = False, before: int = 2) -> bytes:
    """A cache as glibc writes it: header, entries, texts; offsets count from the header."""
    texts = b""
    entries = b""
    start = 48 + 24 * len(rows)
    for flags, name, path in rows:
        key, value = start + len(texts), start + len(texts) + len(name.encode()) + 1
        texts += name.encode() + b"\0" + path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", flags, key, value, 0, 0)
    header = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", len(rows), len(texts), 2, 0)
    new = header + entries + texts
    if not old:
        return new
    head = b"ld.so-1.7.0\0" + struct.pack("<I", before) + bytes(12 * before)
    return head + bytes(-len(head) % 8) + new


ROWS = [
    (X86_64, "libcuda.so.1", "/srv/nvidia/lib/libcuda.so.1"),
    (I386, "libcuda.so.1", "/srv/nvidia/lib32/libcuda.so.1"),
    (AARCH64, "libcuda.so.1", "/srv/nvidia/arm/libcuda.so.1"),
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_both_layouts(old: bool, before: int) -> None:
    assert parse_ld_cache(cache(ROWS, old=old, before=before)) == (
        CacheEntry("libcuda.so.1", "/srv/nvidia/lib/libcuda.so.1", "x86_64"),
        CacheEntry("libcuda.so.1", "/srv/nvidia/lib32/libcuda.so.1", ""),
        CacheEntry("libcuda.so.1", "/srv/nvidia/arm/libcuda.so.1", "aarch64"),
    )


@given(st.lists(st.tuples(st.just(X86_64), TEXT, TEXT.map(lambda text: f"/{text}")), max_size=8), st.booleans())
def test_what_is_written_is_read(rows: list[Row], old: bool) -> None:
    assert [(one.name, one.path) for one in parse_ld_cache(cache(rows, old=old))] == [row[1:] for row in rows]


@given(st.binary(max_size=300))
def test_any_bytes_give_entries_or_none(data: bytes) -> None:
    for begin in (b"", b"glibc-ld.so.cache1.1", b"ld.so-1.7.0\0"):
        for entry in parse_ld_cache(begin + data):
            assert entry.path.startswith("/")


@given(st.data())
def test_a_cut_or_changed_cache_gives_no_more_than_it_has(data) -> None:
    whole = bytearray(cache(ROWS, old=data.draw(st.booleans())))
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = bytes(whole[:at])
    assert set(parse_ld_cache(cut)) <= set(parse_ld_cache(bytes(whole)))
    whole[at] ^= data.draw(st.integers(1, 255))
    assert len(parse_ld_cache(bytes(whole))) <= len(ROWS) + 1


def test_a_number_of_entries_that_is_a_lie_costs_nothing() -> None:
    lie = bytearray(cache(ROWS))
    struct.pack_into("<I", lie, 20, 0xFFFFFFFF)
    assert len(parse_ld_cache(bytes(lie))) <= len(lie) // 24


def test_big_endian_caches_and_paths_that_are_no_text_are_left() -> None:
    big = bytearray(cache(ROWS))
    big[28] = 3
    assert parse_ld_cache(bytes(big)) == ()
    assert [one.abi for one in parse_ld_cache(cache(ROWS).replace(b"/srv/nvidia/lib/", b"/srv/nvidi\xff/lib/"))] == [
        "",
        "aarch64",
    ]


@pytest.mark.skipif(shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin") is None, reason="no ldconfig here")
def test_reads_this_machines_cache_as_ldconfig_does() -> None:
    path = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin")
    printed = subprocess.run([path, "-p"], capture_output=True, text=True, check=False)
    expected = [line.split(" => ") for line in printed.stdout.splitlines() if "(libc6" in line]
    if not expected:
        pytest.skip("no cache here")
    with open("/etc/ld.so.cache", "rb") as file:
        entries = parse_ld_cache(file.read())
    assert [(one.name, one.path) for one in entries] == [(left.split()[0], right) for left, right in expected]


def test_unusual_folder_is_known_from_the_loaders_cache(tmp_path) -> None:
    driver(tmp_path, "/srv/driver/lib")
    root = DriverRoot.at(tmp_path)
    with pytest.raises(HostError):
        find_driver_files(root)
    rows = [(I386, "libcuda.so.1", "/usr/lib32/libcuda.so.1"), (X86_64, "libcuda.so.1", "/srv/driver/lib/libcuda.so.1")]
    write(tmp_path, "/etc/ld.so.cache", cache(rows, old=True))
    assert len(find_driver_files(root).libraries) == 2
    (tmp_path / "etc/ld.so.cache").rename(tmp_path / "cache")
    write(tmp_path, "/usr/local/glibc/etc/ld.so.cache", cache(rows))
    assert len(find_driver_files(root).libraries) == 2


def test_a_cache_that_names_folders_outside_stays_inside(tmp_path) -> None:
    driver(tmp_path, "/srv/driver/lib")
    driver(tmp_path / "outside", "/lib")
    inside = tmp_path / "root"
    driver(inside, "/none")
    write(inside, "/etc/ld.so.cache", cache([(X86_64, "libcuda.so.1", "/../outside/lib/libcuda.so.1")]))
    with pytest.raises(HostError):
        find_driver_files(DriverRoot.at(inside))
