"""Reads what GPU drivers write to the kernel log: NVIDIA's Xids, SXids, lost GPUs, and which UUID is at which address;
AMD's lines by the rows of ``amdgpu_log``.

Takes records of ``/dev/kmsg`` and lines of dmesg, syslog and the journal. Total and bounded: any bytes give an answer,
no line costs more than its first ``MAX_LINE`` characters, and nothing but the drivers' own lines is taken for one. In a
kmsg record a message has to begin as the driver begins it and has to come from the kernel, so that neither a process's
name nor a write to ``/dev/kmsg`` can forge one; a text file has no such proof.

Formats: ``NVRM: Xid (PCI:0000:04:00 GPU-I:05 GPU-CI:00): 43, pid=1, name=a, text`` where all but the address and the
number may be missing, ``nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 text``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from kgpu.health import amdgpu_log
from kgpu.hw.recovery import RECOVERY_ACTIONS

MAX_LINE: Final = 8192
"""The most characters of a line that are read: the kernel's own limit for a record of /dev/kmsg."""
MAX_CODE: Final = 99_999
LOST_XID: Final = 79
_LOST_LINES: Final = 3
"""Lines that the sentence about a GPU that is lost at start-up is spread over, after the first."""

_BDF: Final = (
    r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}|00[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})"
    r"(?:\.[0-9a-fA-F]{1,4})?"
)
_XID: Final = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_BDF}(?: GPU-I:(?P<gi>[0-9]{{1,3}}))?(?: GPU-CI:(?P<ci>[0-9]{{1,3}}))?\): "
    r"(?P<code>[0-9]{1,5})(?![0-9])(?:, {0,4}(?P<rest>.*))?",
    re.DOTALL,
)
_SXID: Final = re.compile(
    rf"nvidia-nvswitch(?P<switch>[0-9]{{1,3}}): SXid \((?:PCI:)?{_BDF}\): (?P<code>[0-9]{{1,5}})(?![0-9])"
    r"(?:, {0,4}(?P<rest>.*))?",
    re.DOTALL,
)
_LOST: Final = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_BDF}:? (?:GPU )?has fallen off the bus")
_LOST_BEGIN: Final = re.compile(rf"NVRM: The NVIDIA GPU {_BDF}(?=[\s(]|$)")
_LOST_END: Final = re.compile(r"fallen off the bus and is not responding to commands")
_HEX: Final = "[0-9a-fA-F]"
_UUID: Final = re.compile(rf"NVRM: GPU at (?:PCI:)?{_BDF}: (?P<uuid>GPU-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}})")
_STUCK: Final = re.compile(
    r"NVRM: knvlink(?:DiscoverPostRxDetLinks_[A-Za-z0-9_]{1,32}: Getting peer[0-9]{1,3}(?:'s)? postRxDetLinkMask failed"
    r"|UpdatePostRxDetectLinkMask_[A-Za-z0-9_]{1,32}: Failed to update Rx Detect Link mask)"
)
_PID: Final = re.compile(
    r"pid=['`\"]?(?P<pid>[0-9]{1,10}|<[a-z/ ]{1,12}>)['`\"]?"
    r"(?:, {0,4}name=(?P<name>.{0,128}?))?(?:, {0,4}(?P<text>.*))?$",
    re.DOTALL,
)
_RECOVERY: Final = re.compile(
    r"GPU recovery action changed from 0x(?P<old>[0-9a-fA-F]{1,8}) \([^()]{0,40}\)"
    r" to 0x(?P<new>[0-9a-fA-F]{1,8}) \((?P<words>[^()]{0,40})\)\.?\s*$"
)
_SWITCH_LINK: Final = re.compile(
    r"(?:(?P<fatal>Non-fatal|Nonfatal|Fatal), {0,4})?(?:Link (?P<link>[0-9]{1,3})\b)?", re.IGNORECASE
)
_DETAIL: Final = re.compile(r"(?:Severity [0-9]{1,3} |Data \{)")
_STARTS: Final = re.compile(r"NVRM: |nvidia-nvswitch[0-9]{1,3}: ")
_BOOT: Final = re.compile(r"Linux version [0-9]{1,3}\.")

# What stands before the message in files: the time of dmesg, a priority, the date and host of syslog and the journal.
_PREFIX: Final = re.compile(
    r"(?:<(?P<priority>[0-9]{1,3})>)?"
    r"(?:[a-z]{1,8} {0,4}: ?[a-z]{1,8} {0,4}: )?"
    r"(?:(?P<when>(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{8,20}(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
    r"|[A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)) "
    r"(?:(?!amdgpu [0-9a-f]{4,8}:)[^\s:]{1,253} )?"
    r"(?:kernel(?:\[[0-9]{1,10}\])?: ?)?|kernel: ?)?"
    r"(?:\[ {0,8}(?P<clock>[^\[\]\n]{1,40})\] {0,4})?"
)
_KMSG: Final = re.compile(
    rb"(?P<prio>[0-9]{1,10}),(?P<seq>[0-9]{1,20}),(?P<usec>[0-9]{1,20}),(?P<flags>[^,;\n]{0,8})(?:,[^;\n]{0,256})?;"
)
_ESCAPE: Final = re.compile(r"\\x([0-9a-fA-F]{2})")
_KERN: Final = 0


class LineKind(enum.StrEnum):
    """The kinds of events that a line reports."""

    XID = "xid"
    SXID = "sxid"
    DETAIL = "detail"  # a line that follows an SXid and repeats its number: no error of its own
    IDENTITY = "identity"  # which UUID is at which address
    NVLINK_STUCK = "nvlink-stuck"  # the driver can't find its NVLinks; names no GPU
    DRIVER = "driver"  # an error that the driver has no number for: ``key`` tells which
    RESET = "reset"  # the driver has reset the GPU
    BOOT = "boot"  # the kernel's first line: what comes before is from an earlier boot


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One of the drivers' lines.

    ``pci`` is ``0000:04:00`` (domain 0000 where the line has none; lower case), "" where the line names no device.
    ``pid`` is None for "unknown". ``text`` is what follows, "" for none; it is shown, never trusted. ``recovery`` is an
    Xid 154's verdict in the words of ``kgpu.hw.port``, "" for all others. ``implied``: the line has no number, but
    it is known which it would be. ``key`` is a row's of ``amdgpu_log``. ``when`` is the time as it was written before
    the message.
    """

    kind: LineKind
    code: int = 0
    pci: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pid: int | None = None
    process: str = ""
    text: str = ""
    fatal: bool | None = None
    link: int | None = None
    switch: int | None = None
    uuid: str = ""
    recovery: str = ""
    implied: bool = False
    key: str = ""
    when: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """A record of ``/dev/kmsg``. ``level`` is 0 (emergency) to 7, ``facility`` 0 for the kernel.

    ``microseconds`` are since boot on the kernel's clock. ``fields`` are the continuation lines, such as DEVICE.
    """

    level: int
    facility: int
    sequence: int
    microseconds: int
    message: str
    flags: str = "-"
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def from_kernel(self) -> bool:
        """False for what a program wrote to /dev/kmsg: the kernel never lets it say that it is the kernel."""
        return self.facility == _KERN


def parse_record(data: bytes) -> KernelRecord | None:
    """One record of ``/dev/kmsg``, as one read gives it; None for anything else."""
    data = data[:MAX_LINE]
    head = _KMSG.match(data)
    if head is None:
        return None
    message, *more = data[head.end() :].rstrip(b"\n").split(b"\n")
    priority = int(head["prio"])
    fields = {}
    for line in more:
        name, equals, value = line.strip().partition(b"=")
        if line.startswith(b" ") and equals:
            fields[_text(name)] = _unescape(_text(value))
    return KernelRecord(
        level=priority & 7,
        facility=priority >> 3,
        sequence=int(head["seq"]),
        microseconds=int(head["usec"]),
        flags=_text(head["flags"]) or "-",
        message=_unescape(_text(message)),
        fields=fields,
    )


def parse_message(message: str) -> LogEvent | None:
    """The event that a kernel message reports; None when it does not begin as the drivers' lines do."""
    message = message[:MAX_LINE]
    if _BOOT.match(message):
        return LogEvent(kind=LineKind.BOOT)
    if not _STARTS.match(message):
        return _amdgpu(message)
    for pattern, make in ((_XID, _xid), (_SXID, _sxid), (_LOST, _lost), (_UUID, _identity)):
        hit = pattern.match(message)
        if hit is not None:
            return make(hit)
    if _STUCK.match(message):
        return LogEvent(kind=LineKind.NVLINK_STUCK, text=message)
    begin = _LOST_BEGIN.match(message)
    if begin is not None and _LOST_END.search(message, begin.end()):
        return _lost(begin)
    return None


def parse_record_event(record: KernelRecord) -> LogEvent | None:
    """The event that a record reports; None also when a program wrote the record."""
    return parse_message(record.message) if record.from_kernel else None


def read_lines(lines: Iterable[str | bytes]) -> Iterator[LogEvent]:
    """Every event of a log in text form: dmesg (any options), syslog, the journal, or copies of kmsg records."""
    lost: re.Match[str] | None = None
    left = 0
    for raw in lines:
        event, message = _line(raw[:MAX_LINE])
        if event is not None:
            lost = None
            yield event
            continue
        begin = _LOST_BEGIN.match(message)
        if begin is not None:
            lost, left = begin, _LOST_LINES
        elif lost is not None:
            left -= 1
            if _LOST_END.search(message):
                yield _lost(lost)
                lost = None
            elif left == 0:
                lost = None


def _line(raw: str | bytes) -> tuple[LogEvent | None, str]:
    """The event that one line reports, and its message without the prefix."""
    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "replace")
    record = parse_record(data)
    if record is not None:
        return parse_record_event(record), record.message
    text = _text(data).rstrip("\r\n")
    prefix = _PREFIX.match(text)
    start = prefix.end() if prefix else 0
    message = text[start:]
    event = parse_message(message)
    if event is None or prefix is None:
        return event, message
    when = (prefix["when"] or prefix["clock"] or "").strip(" .")
    return (replace(event, when=when) if when else event), message


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _unescape(text: str) -> str:
    r"""Undo the kernel's escapes: it writes unprintable bytes as ``\x0a``."""
    return _ESCAPE.sub(lambda hit: chr(int(hit[1], 16)), text) if "\\x" in text else text


def _pci(hit: re.Match[str]) -> str:
    domain = (hit["domain"] or "0000").lower()
    # Drivers of long ago print bus and device alone, the bus with four digits.
    domain = domain.lstrip("0").rjust(4, "0")
    return f"{domain}:{hit['bus'][-2:].lower()}:{hit['device'].lower()}"


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _xid(hit: re.Match[str]) -> LogEvent | None:
    code = int(hit["code"])
    if not 0 < code <= MAX_CODE:
        return None
    rest = (hit["rest"] or "").strip()
    pid, process = None, ""
    owner = _PID.match(rest)
    if owner is not None:
        pid = int(owner["pid"]) if owner["pid"].isdecimal() else None
        process = "" if (owner["name"] or "").startswith("<") else owner["name"] or ""
        rest = (owner["text"] or "").strip()
    change = _RECOVERY.search(rest)
    return LogEvent(
        kind=LineKind.XID,
        code=code,
        pci=_pci(hit),
        gpu_instance=_number(hit["gi"]),
        compute_instance=_number(hit["ci"]),
        pid=pid,
        process=process,
        text=rest,
        recovery=RECOVERY_ACTIONS.get(int(change["new"], 16), "unknown") if change and code == 154 else "",
    )


def _sxid(hit: re.Match[str]) -> LogEvent | None:
    code = int(hit["code"])
    if not 0 < code <= MAX_CODE:
        return None
    rest = (hit["rest"] or "").strip()
    head = _SWITCH_LINK.match(rest)
    fatal = (head["fatal"] or "").lower() if head else ""
    link = head["link"] if head else None
    return LogEvent(
        kind=LineKind.DETAIL if _DETAIL.match(rest) else LineKind.SXID,
        code=code,
        pci=_pci(hit),
        text=rest,
        switch=int(hit["switch"]),
        fatal={"": None, "fatal": True}.get(fatal, False),
        link=_number(link),
    )


def _lost(hit: re.Match[str]) -> LogEvent:
    return LogEvent(kind=LineKind.XID, code=LOST_XID, pci=_pci(hit), text="GPU has fallen off the bus", implied=True)


def _amdgpu(message: str) -> LogEvent | None:
    line = amdgpu_log.parse(message)
    if line is None:
        return None
    kind = LineKind.DRIVER if line.key else LineKind.RESET
    return LogEvent(kind=kind, key=line.key, pci=line.pci, text=line.text)


def _identity(hit: re.Match[str]) -> LogEvent:
    return LogEvent(kind=LineKind.IDENTITY, pci=_pci(hit), uuid=hit["uuid"])
