"""What an order for an operation on GPUs means, step by step and in any order of steps."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent.node_orders import (
    LONGEST,
    ONCE,
    TOO_LONG,
    UNCHECKED,
    Standing,
    heed,
    holders,
    ordered_gpus,
    stranded,
    unfit,
    unread_gpus,
)
from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishRules
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import NodeOrder, OrderAnswer, OrderStep, answer, change_order, order
from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem, Reading
from kgpu.hw.verdicts import GpuVerdict, Verdicts
from kgpu.kubelet.pod_resources import DeviceClaim, Holding
from tests.budget import tries
from tests.dra.samples import gaudi, mi300x

INVENTORY = sample_inventory(4)
GPUS = INVENTORY.accelerators
ILL, OTHER = GPUS[1], GPUS[2]


def given_step(step: OrderStep = OrderStep.WITHDRAW, *gpus: Accelerator, act: str = "act-1", **more: bool) -> NodeOrder:
    return order(act=act, boot="boot", step=step, gpus=tuple(gpu.uuid for gpu in gpus or (ILL,)), **more)


def checked(step: OrderStep = OrderStep.WITHDRAW) -> Standing:
    return Standing(order=given_step(step), checked=True)


def with_gpu(gpu: Accelerator, **fields: object) -> Inventory:
    changed = tuple(dataclasses.replace(one, **fields) if one is gpu else one for one in GPUS)  # type: ignore[arg-type]
    return dataclasses.replace(INVENTORY, accelerators=changed)


# How far it is


def test_nothing_stands_without_an_order() -> None:
    assert heed(None, checked(), None, 1.0) is None


def test_gpus_are_withdrawn_once_they_are_known_to_be_fit() -> None:
    standing = heed(given_step(), None, None, 1.0)
    assert standing is not None
    assert not standing.withdraws
    assert dataclasses.replace(standing, checked=True).withdraws
    assert not dataclasses.replace(standing, checked=True, refused="MIG").withdraws


def test_the_driver_is_released_only_after_the_withdrawal() -> None:
    early = heed(given_step(OrderStep.RELEASE), None, None, 1.0)
    assert early is not None
    assert not early.releases
    late = heed(given_step(OrderStep.RELEASE), checked(), None, 1.0)
    assert late is not None
    assert late.releases
    assert late.released == 1.0


def test_a_release_ends_by_itself_and_does_not_begin_again() -> None:
    release = given_step(OrderStep.RELEASE)
    standing = heed(release, checked(), None, 100.0)
    standing = heed(release, standing, None, 99.9 + LONGEST)
    assert standing is not None
    assert standing.releases
    standing = heed(release, standing, None, 100.0 + LONGEST)
    assert standing is not None
    assert (standing.releases, standing.over) == (False, TOO_LONG)
    standing = heed(given_step(), standing, None, 2000.0)
    standing = heed(release, standing, None, 2001.0)
    assert standing is not None
    assert (standing.releases, standing.withdraws) == (False, True)


@pytest.mark.parametrize("between", [OrderStep.RESUME, OrderStep.WITHDRAW])
def test_what_was_opened_again_is_not_released_for_the_same_act(between: OrderStep) -> None:
    standing = heed(given_step(OrderStep.RELEASE), checked(), None, 1.0)
    standing = heed(given_step(between), standing, None, 2.0)
    standing = heed(given_step(OrderStep.RELEASE), standing, None, 3.0)
    assert standing is not None
    assert (standing.releases, standing.over) == (False, ONCE)
    another = heed(given_step(OrderStep.RELEASE, act="act-2"), standing, None, 4.0)
    assert another is not None
    assert (another.over, another.checked) == ("", False)


def test_an_order_of_the_same_act_for_other_gpus_is_looked_at_anew() -> None:
    own = answer(given_step())
    standing = heed(given_step(OrderStep.RELEASE, OTHER), checked(), own, 1.0)
    assert standing is not None
    assert not standing.checked


def test_a_change_with_a_reset_keeps_the_driver_released_and_ends_with_the_next_step() -> None:
    layouts = (MigLayout(gpu=ILL.uuid, enabled=True),)
    given = {
        (step, released): change_order(act="act-1", boot="boot", step=step, layouts=layouts, released=released)
        for step in OrderStep
        for released in (False, True)
    }
    released = heed(given[OrderStep.RELEASE, False], checked(), None, 1.0)
    kept = heed(given[OrderStep.CHANGE, True], released, None, 2.0)
    assert kept is not None
    assert (kept.releases, kept.changes, kept.released, kept.over) == (True, True, 1.0, "")
    late = heed(given[OrderStep.CHANGE, True], kept, None, 1.0 + LONGEST)
    assert late is not None
    assert (late.releases, late.changes, late.over) == (False, True, TOO_LONG)
    over = heed(given[OrderStep.RESUME, False], kept, None, 3.0)
    assert over is not None
    assert (over.releases, over.changes, over.over) == (False, False, ONCE)
    slices_alone = heed(given[OrderStep.CHANGE, False], checked(), None, 1.0)
    assert slices_alone is not None
    assert (slices_alone.releases, slices_alone.changes, slices_alone.over) == (False, True, "")


def test_instances_are_no_reason_against_a_change_of_them() -> None:
    sliced = with_gpu(ILL, mig_enabled=True, partitions=sample_partitions(ILL))
    layouts = (MigLayout(gpu=ILL.uuid, enabled=True),)
    change = change_order(act="act-1", boot="boot", step=OrderStep.WITHDRAW, layouts=layouts)
    assert unfit(change, sliced) == ""
    assert "has MIG instances" in unfit(given_step(), sliced)
    assert "only NVIDIA GPUs can be parted by kgpu" in unfit(change, dataclasses.replace(INVENTORY, vendor="amd"))


AFTER_RESTART = [
    (OrderStep.WITHDRAW, {}, OrderStep.WITHDRAW, (True, False, "")),
    (OrderStep.WITHDRAW, {}, OrderStep.RELEASE, (True, True, "")),
    (OrderStep.WITHDRAW, {"waits": f"{UNCHECKED}: the driver can't be read"}, OrderStep.RELEASE, (False, False, "")),
    (OrderStep.WITHDRAW, {"waits": "the kubelet does not say"}, OrderStep.RELEASE, (True, True, "")),
    (OrderStep.WITHDRAW, {"refused": "MIG"}, OrderStep.RELEASE, (False, False, "")),
    (OrderStep.RELEASE, {}, OrderStep.RELEASE, (True, True, "")),
    (OrderStep.RELEASE, {"waits": TOO_LONG}, OrderStep.RELEASE, (True, False, TOO_LONG)),
    (OrderStep.RESUME, {}, OrderStep.RELEASE, (True, False, ONCE)),
    (OrderStep.RESUME, {}, OrderStep.RESUME, (True, False, ONCE)),
]


@pytest.mark.parametrize(("was", "said", "step", "expected"), AFTER_RESTART)
def test_an_agent_that_starts_in_the_middle_goes_on_from_its_answer(
    was: OrderStep, said: dict[str, str], step: OrderStep, expected: tuple[bool, bool, str]
) -> None:
    own = answer(given_step(was), **said)  # type: ignore[arg-type]
    standing = heed(given_step(step), None, own, 1.0)
    assert standing is not None
    assert (standing.withdraws, standing.releases, standing.over) == expected
    assert standing.refused == said.get("refused", "")


def test_an_answer_about_another_act_says_nothing() -> None:
    standing = heed(given_step(OrderStep.RELEASE), None, answer(given_step(act="other")), 1.0)
    assert standing is not None
    assert not standing.releases


@tries(100)
@given(st.lists(st.tuples(st.sampled_from(OrderStep), st.floats(0.0, 400.0)), max_size=20))
def test_one_act_has_the_driver_once_and_for_a_limited_time(steps: list[tuple[OrderStep, float]]) -> None:
    now, spans, begun = 0.0, 0, None
    standing: Standing | None = checked()
    for step, seconds in steps:
        now += seconds
        standing = heed(given_step(step), standing, None, now)
        assert standing is not None
        assert standing.withdraws
        spans += standing.releases and begun is None
        begun = (now if begun is None else begun) if standing.releases else None
        assert begun is None or now - begun < LONGEST
    assert spans <= 1


# What is refused


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (dataclasses.replace(INVENTORY, vendor="amd"), "only NVIDIA"),
        (dataclasses.replace(INVENTORY, accelerators=(GPUS[0],)), f"lists no GPU {ILL.uuid}"),
        (with_gpu(ILL, mig_enabled=True, partitions=sample_partitions(ILL)), "MIG instances (1g.10gb)"),
    ],
)
def test_what_can_never_be_done_is_refused(inventory: Inventory, words: str) -> None:
    assert words in unfit(given_step(), inventory)


def test_what_does_not_hinder_a_reset_is_not_refused() -> None:
    assert unfit(given_step(), INVENTORY) == ""
    assert unfit(given_step(), with_gpu(OTHER, mig_enabled=True, partitions=sample_partitions(OTHER))) == ""
    assert unfit(given_step(), with_gpu(ILL, mig_enabled=True)) == ""
    assert unfit(given_step(), with_gpu(ILL, findings=(found(Problem.LOST),))) == ""


def found(problem: Problem) -> HardwareFinding:
    return HardwareFinding(subject=ILL.uuid, problem=problem, what=f"it is {problem}", expected="", remedy="")


# Who holds it


def held(device: str, resource: str = "nvidia.com/gpu", claim: DeviceClaim | None = None) -> Holding:
    return Holding(
        namespace="team", pod="train", container="main", resource=resource, devices=(device,), claim=claim
    )  # fmt: skip


SLICED = with_gpu(ILL, mig_enabled=True, partitions=sample_partitions(ILL))
CLAIM = DeviceClaim("claim")
DRA = "gpu.nvidia.com"


@pytest.mark.parametrize(
    ("holding", "counts"),
    [
        (held(ILL.uuid), True),
        (held(f"{ILL.uuid}::3", "nvidia.com/gpu.shared"), True),
        (held(ILL.uuid, "example.com/renamed"), True),
        (held(sample_partitions(ILL)[2].uuid, "nvidia.com/mig-1g.10gb"), True),
        (held(f"{sample_partitions(ILL)[2].uuid}::0", "nvidia.com/mig-1g.10gb.shared"), True),
        (held(f"MIG-{ILL.uuid}/7/0", "nvidia.com/mig-1g.10gb"), True),
        (held("nvidia1"), True),
        (held("nvidia1/gi7"), True),
        (held("gpu-1", DRA, CLAIM), True),
        (held("gpu-1-mig-1g10gb-19-0", DRA, CLAIM), True),
        (held("a-name-of-a-later-version", DRA, CLAIM), False),
        (held("gpu-2", DRA, CLAIM), False),
        (held("nic-1", "net.example.com", CLAIM), False),
        (held(OTHER.uuid), False),
        (held(f"{OTHER.uuid}::1"), False),
        (held(f"MIG-{OTHER.uuid}/7/0"), False),
        (held("nvidia2"), False),
        (held("nvidia1", "example.com/nic"), False),
        (held("", "example.com/nic"), False),
    ],
)
def test_every_form_of_a_device_id_finds_its_pod(holding: Holding, counts: bool) -> None:
    pods = holders(given_step(), (holding,), SLICED)
    assert [(pod.namespace, pod.name) for pod in pods] == ([("team", "train")] if counts else [])


@pytest.mark.parametrize("node", [mi300x(), mi300x(parts=2), gaudi()])
def test_other_vendors_claims_are_found_by_their_devices_names(node: Inventory) -> None:
    ill, _ = node.accelerators
    published = node_devices(node, PublishRules())
    for device in published.devices:
        found = holders(given_step(OrderStep.WITHDRAW, ill), (held(device.name, published.driver, CLAIM),), node)
        assert bool(found) is (device.gpu == ill.uuid)
    assert holders(given_step(OrderStep.WITHDRAW, ill), (held("gpu-9-999", published.driver, CLAIM),), node) == ()


def test_pods_with_devices_that_are_gone_are_stranded() -> None:
    whole, parted = mi300x(), mi300x(parts=2)
    part = parted.accelerators[0].partitions[1].uuid
    first = parted.accelerators[0].partitions[0].uuid
    published = node_devices(parted, PublishRules())
    rows = (
        (held(part, "amd.com/gpu"), True), (held(f"{part}::1", "amd.com/cpx_nps1"), True),
        (held(part, "example.com/gpu"), False), (held(first, "amd.com/gpu"), first != whole.accelerators[0].uuid),
        *((held(one.name, published.driver, CLAIM), one.partition is not None) for one in published.devices[1:2]),
    )  # fmt: skip
    for holding, lost in rows:
        assert stranded((holding,), parted) == ()
        assert bool(stranded((holding, holding), whole)) is lost, holding
    assert [pod.name for pod in stranded((rows[0][0], rows[0][0]), whole)] == ["train"], "named once"


def test_slices_that_are_gone_strand_their_pods() -> None:
    gone = held(sample_partitions(ILL)[2].uuid, "nvidia.com/mig-1g.10gb")
    assert stranded((gone,), SLICED) == ()
    assert len(stranded((gone,), INVENTORY)) == 1
    assert (
        stranded((held(ILL.uuid), held(f"{ILL.uuid}::3", "nvidia.com/gpu.shared"), held("x", "cpu")), INVENTORY) == ()
    )


def test_a_pod_with_two_of_them_is_named_once() -> None:
    assert len(holders(given_step(OrderStep.WITHDRAW, ILL, OTHER), (held(ILL.uuid), held(OTHER.uuid)), None)) == 1


# How it is


def problem(
    inventory: Inventory = INVENTORY, readings: tuple[Reading, ...] = (), verdicts: Verdicts | None = None
) -> str:
    (gpu,) = ordered_gpus(given_step(), inventory, readings, verdicts, since=50.0)
    assert gpu.uuid == ILL.uuid
    return gpu.problem


def test_a_gpu_that_is_well_has_no_problem_and_its_address() -> None:
    (gpu,) = ordered_gpus(given_step(), INVENTORY, (), None, since=50.0)
    assert (gpu.pci, gpu.problem) == (ILL.pci_bus_id, "")


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        (dataclasses.replace(INVENTORY, accelerators=(GPUS[0],)), "the driver does not list it"),
        (with_gpu(ILL, findings=(found(Problem.MISSING),)), "the driver does not list it"),
        (with_gpu(ILL, findings=(found(Problem.LOST),)), "it is lost"),
        (with_gpu(ILL, findings=(found(Problem.HUNG),)), "it is hung"),
        (with_gpu(ILL, recovery_action="drain-reset"), "the driver asks for: drain-reset"),
        (with_gpu(ILL, recovery_action="unknown"), ""),
        (with_gpu(OTHER, recovery_action="reset"), ""),
    ],
)
def test_what_the_driver_says_against_it_is_told(inventory: Inventory, expected: str) -> None:
    assert problem(inventory) == expected


@pytest.mark.parametrize("key", ["remapped_rows_pending", "retired_pages_pending"])
def test_memory_that_waits_for_a_reset_is_told(key: str) -> None:
    slice_of_it = Reading(uuid=ILL.uuid, gpu_instance=1, values={key: 1.0})
    assert key in problem(readings=(Reading(uuid=ILL.uuid, values={key: 1.0}),))
    assert problem(readings=(Reading(uuid=ILL.uuid, values={key: 0.0}), slice_of_it)) == ""


def test_a_verdict_counts_if_it_is_newer_than_the_step() -> None:
    verdict = GpuVerdict(uuid=ILL.uuid, withdraws=True, what="Xid 48", action="reset-gpu")
    assert problem(verdicts=Verdicts(boot="b", uptime=51.0, gpus=(verdict,))) == "kgpu's health: Xid 48 (reset-gpu)"
    assert "has not looked" in problem(verdicts=Verdicts(boot="b", uptime=49.0, gpus=()))
    assert problem(verdicts=Verdicts(boot="b", uptime=51.0, gpus=())) == ""
    mild = GpuVerdict(uuid=ILL.uuid, withdraws=False, what="Xid 13", action="restart-app")
    assert problem(verdicts=Verdicts(boot="b", uptime=51.0, gpus=(mild,))) == ""


def test_a_driver_that_can_not_be_read_is_every_gpus_problem() -> None:
    gpus = unread_gpus(given_step(OrderStep.RESUME, ILL, OTHER), "it hangs")
    assert [gpu.problem for gpu in gpus] == ["the driver can't be read: it hangs"] * 2


def test_an_answer_with_all_of_it_is_short() -> None:
    long = answer(given_step(), refused=unfit(given_step(), SLICED))
    assert isinstance(long, OrderAnswer)
    assert long.refused.endswith("`-dgi`")
