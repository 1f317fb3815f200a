"""Reads tar archives of others: bounded in what comes out of them, and in the time that their headers take.

Python's own reader of pax headers searches them for digits in time that grows with the square of their length
(CVE-2024-6232), and a packed header of megabytes has a few hundred bytes. Records are ``LENGTH KEY=VALUE``, as POSIX.1
has it; sparse files, which no collector of logs writes, are refused, and so is what has header upon header.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any, Final

MAX_COMMON: Final = 64  # keys of headers that are for all members
MAX_HEADER: Final = 1 << 20
_DIGITS: Final = 8
MAX_ABOVE: Final = 8
"""Headers that one member may have before its own: a long name, a long link, what is common to all."""
_PAX: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_SPARSE: Final = b"GNU.sparse."


class Bounded(io.RawIOBase):
    """A stream that ends with an error when more comes out of it than was allowed: archives can be bombs."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._left, self._limit = file, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), 1 << 20))
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError(f"more than {self._limit} bytes when unpacked")
        buffer[: len(data)] = data
        return len(data)


class Archive(tarfile.TarFile):
    """Counts the headers above a member, each of which is read by the one before; forgets members that were read."""

    above = 0

    def next(self) -> tarfile.TarInfo | None:
        self.above = 0
        self.members.clear()  # type: ignore[attr-defined]
        return super().next()


class Member(tarfile.TarInfo):
    """A member whose pax header is read in one pass. Errors are ``tarfile.ReadError``."""

    def _proc_member(self, archive: Archive) -> tarfile.TarInfo:
        above = self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, *_PAX)
        archive.above += above
        if archive.above > MAX_ABOVE:
            raise tarfile.ReadError(f"more than {MAX_ABOVE} headers of one member")
        if above and self.size > MAX_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        assert archive.fileobj is not None
        raw = archive.fileobj.read(self._block(self.size))[: self.size]  # type: ignore[attr-defined]
        headers = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in records(raw)}
        if self.type == tarfile.XGLTYPE:
            # Each is looked through, and copied, for every member that comes after it.
            archive.pax_headers.update(headers)  # type: ignore[attr-defined]
            if len(archive.pax_headers) > MAX_COMMON:
                raise tarfile.ReadError(f"a header for all members with {len(archive.pax_headers)} keys")
            return self.fromtarfile(archive)
        headers = {**archive.pax_headers, **headers}
        try:
            member = self.fromtarfile(archive)
        except tarfile.HeaderError as error:
            raise tarfile.SubsequentHeaderError(str(error)) from None  # type: ignore[attr-defined]
        member._apply_pax_info(headers, archive.encoding, archive.errors)  # type: ignore[attr-defined]
        member.offset = self.offset
        if "size" in headers:
            # What is next begins after the size that the header says, not the member's own.
            archive.offset = member.offset_data + member._block(member.size)  # type: ignore[attr-defined]
        return member


def records(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a pax header. Raises ``tarfile.ReadError``."""
    at = 0
    while at < len(raw) and raw[at : at + 1] != b"\0":
        space = raw.find(b" ", at, at + _DIGITS + 1)
        length = int(raw[at:space]) if space > at and raw[at:space].isdigit() else 0
        record = raw[space + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if at + length > len(raw) or not equals or not value.endswith(b"\n"):
            raise tarfile.ReadError("a pax header that is none")
        if key.startswith(_SPARSE):
            raise tarfile.ReadError("a sparse file")
        yield key, value[:-1]
        at += length
