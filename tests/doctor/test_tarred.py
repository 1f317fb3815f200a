"""Tar archives of others: pax headers as Python writes and reads them, and hostile ones, which cost no time."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.doctor.sources import files
from kgpu.doctor.sources.tarred import MAX_ABOVE, MAX_COMMON, MAX_HEADER, Archive, Member, records

LONG = "folder/" * 30 + "설명.log"


def packed(*members: tuple[str, bytes], pax: dict[str, str] | None = None, **common: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers=common) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), pax or {}
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def header(kind: bytes, raw: bytes) -> bytes:
    """A pax header with this content, as it stands."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = kind, len(raw)
    return info.tobuf(tarfile.USTAR_FORMAT) + raw + bytes(-len(raw) % 512)


def read(raw: bytes) -> list[tuple[str, bytes]]:
    with Archive.open(fileobj=io.BytesIO(raw), mode="r|", tarinfo=Member) as archive:
        return [(one.name, archive.extractfile(one).read()) for one in archive if one.isfile()]


def test_long_names_and_what_is_common_to_all_are_read_as_python_does() -> None:
    members = (LONG, b"x" * 1000), ("short", b""), (LONG + "2", b"end")
    raw = packed(*members, pax={"mtime": "1.5", "SCHILY.xattr.a": "b=c\nd"}, comment="all")
    assert read(raw) == list(members)
    with (
        tarfile.open(fileobj=io.BytesIO(raw)) as theirs,
        Archive.open(fileobj=io.BytesIO(raw), mode="r|", tarinfo=Member) as ours,
    ):
        for one, other in zip(theirs, ours, strict=True):
            assert one.get_info() == other.get_info()
            assert one.pax_headers == other.pax_headers


def test_a_size_that_only_the_header_says_counts() -> None:
    info = tarfile.TarInfo("large")
    info.size = 0
    raw = header(tarfile.XHDTYPE, b"12 size=700\n") + info.tobuf(tarfile.USTAR_FORMAT) + b"y" * 700 + bytes(324)
    raw += packed(("next", b"z"))
    assert read(raw) == [("large", b"y" * 700), ("next", b"z")]


@pytest.mark.parametrize(
    "raw",
    [b"1" * MAX_HEADER, b"9" * 50_000 + b" hdrcharset", b"0 a=b\n", b"5 a\n", b"99 a=b\n", b"x a=b\n", b"7 a=bcd",
     b"30 GNU.sparse.map=0,1,2,3,4,5\n", b" a=b\n", "²2 a=b\n".encode()],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_is_none_ends_the_archive_at_once(kind: bytes, raw: bytes, tmp_path: Path) -> None:
    """Packed it has a few hundred bytes; Python's own reader takes hours for a megabyte of digits."""
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(header(kind, raw) + packed(("objects.json", b"{}"))))
    begin = time.process_time()
    with pytest.raises(ConfigError, match="can't read the archive"):
        files.read(str(path))
    assert time.process_time() - begin < 10, "a hundred times what it takes"


def test_a_header_that_is_too_large_is_not_read() -> None:
    with pytest.raises(tarfile.ReadError):
        read(header(tarfile.XHDTYPE, b"1" * (MAX_HEADER + 1)))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_long_name_is_not_longer_than_a_header(kind: bytes) -> None:
    """It took as much memory as it said, and packed it has a thousandth of that."""
    longest = header(kind, b"x/" * 2000 + b"\0") + packed(("a", b"b"))
    assert [data for _, data in read(longest)] == [b"b"]
    with pytest.raises(tarfile.ReadError, match="a header of"):
        read(header(kind, b"x" * (MAX_HEADER + 1)) + packed(("a", b"b")))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_headers_upon_headers_are_refused(kind: bytes) -> None:
    """Each is read within the one before: some hundreds were deeper than Python goes."""
    raw = b"11 a=bcdef\n" if kind != tarfile.GNUTYPE_LONGNAME else b"name\0"
    assert [data for _, data in read(header(kind, raw) * MAX_ABOVE + packed(("a", b"b")))] == [b"b"]
    with pytest.raises(tarfile.ReadError, match="headers of one member"):
        read(header(kind, raw) * 2000 + packed(("a", b"b")))


def test_an_old_sparse_file_is_refused() -> None:
    with pytest.raises(tarfile.ReadError, match="a sparse file"):
        read(header(tarfile.GNUTYPE_SPARSE, b""))


def test_an_archive_of_folders_without_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_MEMBERS", 5)
    node = b'{"kind": "Node", "metadata": {"name": "n"}}'
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(packed(("n.json", node))[:1024] + header(tarfile.DIRTYPE, b"") * 10))
    found = files.read(str(path))
    assert list(found.nodes) == ["n"]
    assert any("more than 5 members" in gap.why for gap in found.missing)


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: "=" not in key), st.text(), max_size=5))
def test_records_of_any_content_are_read(pairs: dict[str, str]) -> None:
    raw = tarfile.TarInfo._create_pax_generic_header(pairs, tarfile.XHDTYPE, "utf-8")  # type: ignore[attr-defined]
    size = int(raw[124:135], 8)
    found = {key.decode(): value.decode() for key, value in records(raw[512 : 512 + size])}
    assert found == pairs


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_an_error(raw: bytes) -> None:
    try:
        list(records(raw))
    except tarfile.ReadError:
        return


def test_a_header_for_all_members_has_few_keys() -> None:
    """All of it is looked through and copied for every member: 130,000 keys and 200,000 folders took hours."""
    keys = [f"12 k{number:05}=v\n".encode() for number in range(MAX_COMMON + 1)]
    assert [data for _, data in read(header(tarfile.XGLTYPE, b"".join(keys[1:])) + packed(("a", b"b")))] == [b"b"]
    with pytest.raises(tarfile.ReadError, match="a header for all members with 65 keys"):
        read(header(tarfile.XGLTYPE, b"".join(keys)) + packed(("a", b"b")))
    with pytest.raises(tarfile.ReadError, match="a header for all members"):  # also where each has one
        read(b"".join(header(tarfile.XGLTYPE, key) + packed(("a", b"b"))[:1024] for key in keys))
