"""Lines of the kernel log: every format is read, whatever its fields; nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.health.klog import (
    MAX_LINE,
    LineKind,
    LogEvent,
    parse_message,
    parse_record,
    parse_record_event,
    read_lines,
)

pci = st.builds(
    lambda domain, bus, device: (f"{domain:04x}", f"{bus:02x}", f"{device:02x}"),
    st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F),
)  # fmt: skip
codes = st.integers(1, 99_999)
words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("C",)), max_size=60)
names = st.text("abcXYZ019_:-./ <>()", min_size=1, max_size=40).filter(lambda name: not name.startswith("<"))
PREFIXES = (
    "",
    "[  966.503025] ",
    "[Wed Aug  5 03:12:01 2026] ",
    "[...] ",
    "<4>[    1.100000] ",
    "kern  :warn  : [  12.5] ",
    "kern  :err   : [Wed Aug  5 03:12:01 2026] ",
    "Nov 22 18:29:55 node-1 kernel: [  966.503025] ",
    "May  6 00:38:27 alex kernel: [ 4909.922970] ",
    "Nov 22 18:29:55 node-1.example.org kernel: ",
    "2026-08-21T10:00:00.123456+00:00 node-1 kernel: ",
    "2026-08-21T10:00:00,123456+00:00 ",
    "4,1234,567890123,-;",
    "3,1234,567890123,c,caller=T77;",
)


def only(line: str | bytes) -> LogEvent:
    (event,) = read_lines([line])
    return event


@given(
    prefix=st.sampled_from(PREFIXES), where=pci, code=codes, text=words, tagged=st.booleans(), function=st.booleans(),
    upper=st.booleans(), slices=st.tuples(st.none() | st.integers(0, 99), st.none() | st.integers(0, 99)),
    owner=st.none() | st.tuples(st.none() | st.integers(0, 2**32 - 1), names | st.none()),
)  # fmt: skip
def test_xid_lines(*, prefix, where, code, text, tagged, function, upper, slices, owner) -> None:
    domain, bus, device = where
    address = f"{domain}:{bus}:{device}" + (".0" if function else "")
    place = ("PCI:" if tagged else "") + (address.upper() if upper else address)
    gi, ci = slices
    place += "" if gi is None else f" GPU-I:{gi:02d}"
    place += "" if gi is None or ci is None else f" GPU-CI:{ci:02d}"
    said = text.strip()
    who = ""
    if owner is not None:
        pid, name = owner
        who = f"pid={pid if pid is not None else chr(39) + '<unknown>' + chr(39)}"
        who += f", name={name}" if name is not None else ""
        who += ", "
    elif said.startswith("pid="):
        said = ""
    event = only(f"{prefix}NVRM: Xid ({place}): {code}, {who}{said}\n")
    assert (event.kind, event.code) == (LineKind.XID, code)
    assert event.pci == f"{domain}:{bus}:{device}"
    assert (event.gpu_instance, event.compute_instance) == (gi, None if gi is None else ci)
    if owner is None:
        assert event.pid is None
        assert event.text == said or "\\x" in said
    else:
        assert event.pid == owner[0]


@given(name=names.filter(lambda name: ", " not in name and name.strip() == name), pid=st.integers(1, 2**31), text=words)
def test_process_and_text(name: str, pid: int, text: str) -> None:
    event = parse_message(f"NVRM: Xid (PCI:0000:04:00): 43, pid={pid}, name={name}, {text}")
    assert event is not None
    assert (event.pid, event.process) == (pid, name)
    assert event.text == text.strip()


@pytest.mark.parametrize(
    ("line", "pci_id", "code"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14),
        ("NVRM: Xid (0001:00): 8, Channel 00000001", "0000:01:00", 8),
        ("NVRM: Xid (PCI:00000000:04:00.0): 13", "0000:04:00", 13),
        ("NVRM: Xid (04:00): 13", "0000:04:00", 13),
        ("NVRM: Xid (PCI:0000:5a:00): 79", "0000:5a:00", 79),
        ("NVRM: Xid (PCI:10000:01:00): 79, x", "10000:01:00", 79),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping", "0000:10:1c", 63),
        ("NVRM: Xid (PCI:0000:34:00): 45, Ch 00000010", "0000:34:00", 45),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "0000:29:00", 79),
        ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", "0000:18:00", 79),
        ("NVRM: GPU at PCI:0000:17:00.0 has fallen off the bus.", "0000:17:00", 79),
        (
            "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: fallen off the bus and is not responding to commands.",
            "0000:18:00",
            79,
        ),
    ],
)
def test_forms(line: str, pci_id: str, code: int) -> None:
    event = parse_message(line)
    assert event is not None
    assert (event.pci, event.code) == (pci_id, code)


@pytest.mark.parametrize("prefix", PREFIXES[:-2])
def test_a_lost_gpu_over_several_lines(prefix: str) -> None:
    sentence = ["NVRM: The NVIDIA GPU 0000:18:00.0", "NVRM: (PCI ID: 10de:2901) installed in this system has",
                "NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip
    events = list(read_lines(f"{prefix}{part}\n" for part in sentence))
    assert [(event.code, event.pci, event.implied) for event in events] == [(79, "0000:18:00", True)]


def test_the_end_of_a_sentence_without_its_beginning_is_nothing() -> None:
    end = "NVRM: fallen off the bus and is not responding to commands."
    assert list(read_lines([end])) == []
    assert list(read_lines(["NVRM: The NVIDIA GPU 0000:18:00.0", "a", "b", "c", end])) == []


@given(where=pci, code=st.integers(10_000, 99_999), switch=st.integers(0, 63), link=st.none() | st.integers(0, 63),
       fatal=st.sampled_from(["Fatal", "Non-fatal"]), prefix=st.sampled_from(PREFIXES))  # fmt: skip
def test_sxid_lines(*, where, code, switch, link, fatal, prefix) -> None:
    address = ":".join(where)
    place = "" if link is None else f"Link {link} "
    event = only(
        f"{prefix}nvidia-nvswitch{switch}: SXid (PCI:{address}.0): {code}, {fatal}, {place}egress error (First)"
    )
    assert (event.kind, event.code, event.switch, event.link) == (LineKind.SXID, code, switch, link)
    assert event.fatal is (fatal == "Fatal")
    assert event.pci == address


@pytest.mark.parametrize(
    "rest", ["Data {0x50610002, 0x10100030}", "Severity 0 Engine instance 46 Sub-engine instance 00"]
)
def test_details_of_an_sxid_are_not_counted(rest: str) -> None:
    event = parse_message(f"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, {rest}")
    assert event is not None
    assert event.kind is LineKind.DETAIL


@given(where=pci, old=st.integers(0, 7), new=st.integers(0, 7), owner=st.sampled_from(["", "pid=1, name=a, "]))
def test_the_drivers_own_verdict(where, old, new, owner) -> None:
    said = f"GPU recovery action changed from 0x{old:x} (Old) to 0x{new:x} (New Words)"
    event = parse_message(f"NVRM: Xid (PCI:{':'.join(where)}): 154, {owner}{said}")
    assert event is not None
    assert event.recovery == ["none", "reset", "reboot", "drain", "drain-reset", "imex", "reset", "reboot"][new]
    other = parse_message(f"NVRM: Xid (PCI:{':'.join(where)}): 13, {owner}{said}")
    assert other is not None
    assert other.recovery == ""


def test_a_process_can_not_forge_the_verdict_by_its_name() -> None:
    forged = "a, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    real = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    event = parse_message(f"NVRM: Xid (PCI:0000:01:00): 154, pid=7, name={forged}, {real}")
    assert event is not None
    assert event.recovery == "reset"


def test_identity() -> None:
    event = parse_message("NVRM: GPU at PCI:0000:34:00: GPU-c43f0536-e751-7211-d7a7-78c95249ee7d")
    assert event is not None
    assert (event.kind, event.pci, event.uuid) == (
        LineKind.IDENTITY, "0000:34:00", "GPU-c43f0536-e751-7211-d7a7-78c95249ee7d",
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
    ],
)
def test_nvlinks_that_are_not_found(line: str) -> None:
    event = parse_message(line)
    assert event is not None
    assert event.kind is LineKind.NVLINK_STUCK


OTHERS = [
    "",
    "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in Xorg [79]",
    "amdgpu: NVRM: Xid (PCI:0000:03:00): 79",
    "habanalabs hl0: Xid (PCI:0000:03:00): 79",
    "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
    "NVRM: Xid (invalid): some error",
    "NVRM: Xid error: xyz, invalid data",
    "NVRM: Xid (PCI:0000:05:00): xyz",
    "NVRM: Xid (PCI:0000:05:00): 0, nothing",
    "NVRM: Xid (PCI:0000:05:00): 1234567, too long",
    "NVRM: Xid (PCI:0000:05:00 GPU-I:x): 43",
    "nvidia-nvswitch0: SXid (invalid): 20034, Fatal",
    "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
    "nvidia-nvswitchX: SXid (PCI:0000:00:00.0): 20034, Fatal",
    "python[12]: I saw NVRM: Xid (PCI:0000:05:00): 79, in the log",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20",
    "NVRM: The NVIDIA GPU invalid-bdf.0\nNVRM: fallen off the bus and is not responding to commands.",
    "NVRM: GPU Board Serial Number: 0323618040756",
    "xid: 79",
]


@pytest.mark.parametrize("line", OTHERS)
def test_other_lines_are_not_mistaken(line: str) -> None:
    assert list(read_lines([line])) == []
    assert parse_message(line) is None


def test_a_program_that_writes_to_kmsg_is_not_the_kernel() -> None:
    line = "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=a, GPU has fallen off the bus."
    kernel = parse_record(f"4,100,5000000,-;{line}\n".encode())
    assert kernel is not None
    assert parse_record_event(kernel) is not None
    for facility in range(1, 24):
        record = parse_record(f"{facility * 8 + 4},100,5000000,-;{line}\n".encode())
        assert record is not None
        assert parse_record_event(record) is None


@given(level=st.integers(0, 7), facility=st.integers(0, 23), sequence=st.integers(0, 2**63), usec=st.integers(0, 2**60),
       flags=st.sampled_from(["-", "c", "+"]), more=st.sampled_from(["", ",caller=T12", ",x=1,y"]),
       message=st.text("abc :;,=(){}", max_size=40), fields=st.dictionaries(st.text("ABC", min_size=1), st.text("xyz:+", max_size=9)))  # fmt: skip
def test_records(*, level, facility, sequence, usec, flags, more, message, fields) -> None:
    lines = "".join(f" {key}={value}\n" for key, value in fields.items())
    record = parse_record(f"{facility << 3 | level},{sequence},{usec},{flags}{more};{message}\n{lines}".encode())
    assert record is not None
    assert (record.level, record.facility, record.sequence, record.microseconds) == (level, facility, sequence, usec)
    assert (record.message, record.flags, record.fields) == (message, flags, fields)


def test_a_record_keeps_its_lines_and_escapes() -> None:
    record = parse_record(
        b"3,9,77,-;NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2901) installed in this system has\\x0a"
        b"NVRM: fallen off the bus and is not responding to commands.\n SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n"
    )
    assert record is not None
    assert record.fields == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:18:00.0"}
    event = parse_record_event(record)
    assert event is not None
    assert (event.code, event.pci) == (79, "0000:18:00")


def test_a_line_end_in_a_process_name_makes_no_second_line() -> None:
    record = parse_record(
        b"4,9,77,-;NVRM: Xid (PCI:0000:05:00): 43, pid=1, name=a\\x0aNVRM: Xid (PCI:0000:06:00): 79, x, Ch 1\n"
    )
    assert record is not None
    event = parse_record_event(record)
    assert event is not None
    assert (event.code, event.pci) == (43, "0000:05:00")


@given(st.binary(max_size=300))
def test_any_bytes_are_answered(data: bytes) -> None:
    parse_record(data)
    list(read_lines([data, b"NVRM: Xid (PCI:0000:05:00): 79, " + data, b"4,1,1,-;" + data]))


@given(st.text(max_size=200))
def test_any_text_is_answered(text: str) -> None:
    parse_message(text)
    parse_message(f"NVRM: Xid ({text}")
    parse_message(f"NVRM: Xid (PCI:0000:05:00): 149, {text}")
    parse_message(f"nvidia-nvswitch1: SXid (PCI:0000:05:00.0): {text}")


@pytest.mark.parametrize("piece", ["a", ", ", "pid=", "name=", "(", "0x0 (", "NVRM: ", " ", "[", "Link 1 "])
def test_long_lines_are_cut(piece: str) -> None:
    line = "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=" + piece * (1 << 20)
    event = only(line)
    assert event.code == 79
    assert len(event.text) <= MAX_LINE
