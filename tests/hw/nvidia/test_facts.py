"""Judgements on what the child read: profile names, findings, identities of silent GPUs, events."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.hw.nvidia import facts as judge
from kgpu.hw.nvidia.wire import DriverEvent, GpuReply, MigFacts, Pulse
from kgpu.hw.port import Accelerator, EventKind, Problem


def mig(**fields: object) -> MigFacts:
    base = MigFacts(
        uuid="MIG-1",
        position=0,
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        gi=7,
        ci=0,
        gi_kind=0,
        gi_memory_mib=9984,
        ci_kind=0,
        start=0,
        size=1,
        memory_mib=9856,
        multiprocessors=16,
        slices=(1, 1),
        engines=(1, 1, 0, 1, 0),
        caps=(66, 67),
    )
    return msgspec.structs.replace(base, **fields)


def gpu(*, pulse: dict[str, object] | None = None, **fields: object) -> GpuReply:
    base = GpuReply(
        index=3,
        pulse=Pulse(
            uuid="GPU-3",
            mig_capable=True,
            mig=True,
            mig_pending=True,
            instances=((0, 7, 0),),
            recovery=0,
        ),
        name="NVIDIA H100 80GB HBM3",
        serial="1",
        minor=4,
        bus_id="0000:1b:00.0",
        pci_device_id=0x233010DE,
        pci_class=0x030200,
        numa_node=0,
        memory_bytes=81559 << 20,
        compute_capability=(9, 0),
        fabric=None,
        migs=(mig(),),
        errors=(),
    )
    if pulse:
        fields["pulse"] = msgspec.structs.replace(base.pulse, **pulse)
    return msgspec.structs.replace(base, **fields)


def test_mig_device_in_the_ports_terms() -> None:
    accelerator = judge.accelerator(gpu())
    (part,) = accelerator.partitions
    assert (part.index, part.profile, part.parent_uuid) == ("3:0", "1g.10gb", "GPU-3")
    assert part.device_nodes == ("/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
    assert accelerator.usable
    assert accelerator.findings == ()


@pytest.mark.parametrize(
    ("kinds", "memory", "profile"),
    [
        ((2, 0), 40448, "1c.3g.40gb"),
        ((7, 0), 9984, "1g.10gb+me"),
        ((9, 0), 20096, "1g.20gb"),
        ((4, 4), 81559, "7g.80gb"),
    ],
)
def test_profile_names_follow_the_kinds(kinds: tuple[int, int], memory: int, profile: str) -> None:
    facts = gpu(migs=(mig(gi_kind=kinds[0], ci_kind=kinds[1], gi_memory_mib=memory),))
    assert judge.accelerator(facts).partitions[0].profile == profile


@pytest.mark.parametrize("fields", [{"gi_kind": None}, {"ci_kind": None}, {"gi_kind": 99}])
def test_unknown_profile_takes_the_name_from_the_driver(fields: dict[str, object]) -> None:
    assert judge.accelerator(gpu(migs=(mig(**fields),))).partitions[0].profile == "1g.10gb"


def test_missing_capability_node_is_a_finding_not_a_silent_gap() -> None:
    accelerator = judge.accelerator(gpu(migs=(mig(caps=(66, None)),)))
    (found,) = accelerator.findings
    assert found.problem is Problem.UNREADABLE
    assert "missing MIG GPU instance capability path" in found.what
    assert accelerator.usable


@pytest.mark.parametrize(
    ("code", "action", "problems"),
    [
        (0, "none", []),
        (1, "reset", [Problem.NEEDS_RESET]),
        (2, "reboot", [Problem.NEEDS_RESET]),
        (3, "drain", []),
        (4, "drain-reset", [Problem.NEEDS_RESET]),
        (5, "imex", []),
        (6, "reset", [Problem.NEEDS_RESET]),
        (8, "unknown", [Problem.UNREADABLE]),
    ],
)
def test_a_gpu_that_must_be_reset_is_unusable(code: int, action: str, problems: list[Problem]) -> None:
    accelerator = judge.accelerator(gpu(pulse={"recovery": code}))
    assert accelerator.recovery_action == action
    assert [found.problem for found in accelerator.findings] == problems
    assert accelerator.usable == (Problem.NEEDS_RESET not in problems)


def test_driver_without_the_field_asks_for_nothing() -> None:
    accelerator = judge.accelerator(gpu(pulse={"recovery": None}))
    assert accelerator.usable
    assert accelerator.recovery_action == "unknown"


def test_failed_reading_is_told_and_tolerated() -> None:
    accelerator = judge.accelerator(gpu(memory_bytes=None, errors=(("memory", 999, "Unknown Error"),)))
    assert accelerator.memory_mib is None
    assert accelerator.findings[0].sentence == "GPU 3: memory: Unknown Error (NVML error 999)"
    assert accelerator.usable


@pytest.mark.parametrize(("code", "problem"), [(15, Problem.LOST), (16, Problem.NEEDS_RESET), (4, Problem.UNREADABLE)])
def test_trouble_keeps_nvmls_reason(code: int, problem: Problem) -> None:
    found = judge.trouble_finding("GPU-1", 1, ("handle", code, "the reason"))
    assert found.problem is problem
    assert (found.what, found.gpu) == (f"handle: the reason (NVML error {code})", 1)
    assert found.sentence == f"GPU 1: {found.what}"
    assert found.expected
    assert found.remedy


def test_unreachable_keeps_the_last_facts() -> None:
    known = judge.accelerator(gpu())
    found = judge.finding("GPU-3", Problem.LOST, "gone", "there")
    assert found.sentence == "gone", "nothing is left unnamed"
    after = judge.unreachable(known, 3, found)
    assert (after.name, after.partitions, after.findings) == (known.name, known.partitions, (found,))
    assert not after.usable
    assert (known.recovery_action, after.recovery_action) == ("none", "unknown")


PROCFS = (
    ("0000:07:00.0", "GPU-a", "Model A", "0"),
    ("0000:0f:00.0", "GPU-b", "Model B", "2"),
    ("0000:1b:00.0", "GPU-????????", "Model C", ""),
)


def test_silent_gpu_is_what_stood_there_last() -> None:
    known = [Accelerator(vendor="nvidia", index=1, uuid="GPU-x", name="X")]
    found = judge.identify(1, ["GPU-a"], known, PROCFS)
    assert found is not None
    assert found.uuid == "GPU-x"


def test_silent_gpu_never_seen_comes_from_procfs() -> None:
    found = judge.identify(1, ["GPU-a"], [], PROCFS)
    assert found is not None
    assert (found.uuid, found.minor, found.device_nodes) == ("GPU-b", 2, ("/dev/nvidia2",))


def test_shifted_numbering_does_not_blame_a_gpu_that_answered() -> None:
    known = [Accelerator(vendor="nvidia", index=1, uuid="GPU-b", name="B")]
    assert judge.identify(1, ["GPU-a", "GPU-b"], known, PROCFS) is None


def test_procfs_without_a_uuid_identifies_nothing() -> None:
    assert judge.identify(2, [], [], PROCFS) is None
    assert judge.identify(9, [], [], PROCFS) is None


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (0x8, EventKind.XID),
        (0x1, EventKind.SINGLE_BIT_ECC),
        (0x2, EventKind.DOUBLE_BIT_ECC),
        (0x100, EventKind.MIG_CHANGE),
        (0x8000, EventKind.RECOVERY_ACTION),
    ],
)
def test_events_keep_kind_gpu_and_instance(raw: int, kind: EventKind) -> None:
    event = judge.event(DriverEvent(type=raw, data=79, uuid="GPU-1", gi=2, ci=None))
    assert event is not None
    assert (event.kind, event.uuid, event.gpu_instance, event.compute_instance) == (kind, "GPU-1", 2, None)
    assert event.code == (79 if kind is EventKind.XID else 0)


def test_other_event_kinds_are_dropped() -> None:
    assert judge.event(DriverEvent(type=0x10, data=0, uuid=None, gi=None, ci=None)) is None


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 14), st.integers(0, 6)), max_size=7),
    st.booleans(),
    st.integers(0, 7),
)
def test_signature_differs_exactly_with_the_state(
    instances: list[tuple[int, int, int]], enabled: bool, recovery: int
) -> None:
    base = gpu().pulse
    other = msgspec.structs.replace(base, instances=tuple(instances), mig=enabled, recovery=recovery)
    assert (judge.signature(base) == judge.signature(other)) == (base == other)


def test_signature_of_trouble_differs_from_every_pulse() -> None:
    assert judge.signature(("handle", 15, "lost")) != judge.signature(gpu().pulse)
    assert judge.signature(("handle", 15, "lost")) != judge.signature(("handle", 16, "reset"))
