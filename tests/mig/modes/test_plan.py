"""What a profile asks of a node's GPUs, a test for each rule."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kgpu.base.errors import HwError, UserError
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.partition_mode import PartitionMode, by_modes, label_of
from kgpu.formats.partition_profiles import PartitionProfile, parse_profiles
from kgpu.hw.partitioning import ModeGpu
from kgpu.mig.manager.kind import LayoutPlan
from kgpu.mig.modes.plan import aim, of_layouts, plan
from kgpu.mig.wanted import LayoutError

UNREADABLE = HwError("it hangs", "an answer", "reboot")


def gpus(count: int = 4, **changes: Any) -> list[ModeGpu]:
    return [
        ModeGpu(**{
            "index": index, "uuid": f"0000:0{index}:00.0", "product": "MI300X", "compute": "SPX", "memory": "NPS1",
            "computes": ("SPX", "DPX", "QPX", "CPX"), "memories": ("NPS1", "NPS4"), **changes,
        })
        for index in range(count)
    ]  # fmt: skip


def profile(*rows: tuple[str, str, int], skipped: tuple[int, ...] = ()) -> PartitionProfile:
    text = {"gpu-config-profiles": {"p": {
        "skippedGPUs": {"ids": list(skipped)},
        "profiles": [
            {"computePartition": compute, "memoryPartition": memory, "numGPUsAssigned": count}
            for compute, memory, count in rows
        ],
    }}}  # fmt: skip
    return parse_profiles(json.dumps(text)).chosen("p")


def modes(plans: tuple[LayoutPlan, ...]) -> list[str]:
    return [next(iter(one.layout.devices)) for one in plans]


def test_rows_are_given_to_gpus_in_the_order_of_their_indexes() -> None:
    plans = aim(gpus(), "p", profile(("CPX", "NPS1", 2), ("DPX", "NPS1", 1), ("SPX", "NPS1", 1)))
    assert modes(plans) == ["cpx_nps1", "cpx_nps1", "dpx_nps1", "spx_nps1"]
    assert [one.changes for one in plans] == [True, True, True, False]
    assert not any(one.release for one in plans)
    assert [one.stops for one in plans] == [True, True, True, False]


def test_skipped_gpus_are_left_alone() -> None:
    plans = aim(gpus(), "p", profile(("CPX", "NPS1", 3), skipped=(1,)))
    assert [one.gpu for one in plans] == ["0000:00:00.0", "0000:02:00.0", "0000:03:00.0"]


def test_a_memory_mode_concerns_all_gpus_as_the_driver_is_loaded_anew() -> None:
    found = gpus()
    found[0] = replace(found[0], compute="CPX", memory="NPS4")
    plans = aim(found, "p", profile(("CPX", "NPS4", 4)))
    assert [(one.changes, one.release) for one in plans] == [(True, True)] * 4


def test_nothing_changes_where_all_is_so() -> None:
    plans = aim(gpus(compute="CPX", memory="NPS4"), "p", profile(("CPX", "NPS4", 4)))
    assert [(one.changes, one.release, one.stops) for one in plans] == [(False, False, False)] * 4
    assert plans[0].now == "CPX/NPS4"


def test_parts_that_are_gone_are_a_loss_and_other_modes_are_not() -> None:
    wanted = profile(("CPX", "NPS1", 4))
    assert all(one.gone for one in aim(gpus(), "p", wanted))
    assert not any(one.gone for one in aim(gpus(compute="DPX"), "p", wanted))
    assert not any(one.gone for one in aim(gpus(compute="DPX"), "p", profile(("SPX", "NPS1", 4))))


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        (gpus(4), profile(("CPX", "NPS1", 8)), "is for 8 GPUs (8 assigned and 0 skipped), and this node has 4"),
        (gpus(4), profile(("CPX", "NPS1", 4), skipped=(0,)), "is for 5 GPUs (4 assigned and 1 skipped)"),
        (gpus(4), profile(("CPX", "NPS1", 3), skipped=(7,)), "skips GPU 7, which this node does not have"),
        (gpus(0), profile(("CPX", "NPS1", 1)), "this node has 0"),
        (gpus(1), profile(("TPX", "NPS1", 1)), "has no compute partition mode TPX"),
        (gpus(1), profile(("DPX", "NPS2", 1)), "has no memory partition mode NPS2"),
        (gpus(1, computes=(), memories=(), compute="", memory=""), profile(("CPX", "NPS1", 1)), "can't be parted"),
        (gpus(1, problem=UNREADABLE), profile(("CPX", "NPS1", 1)), "it hangs"),
        (gpus(2), profile(("CPX", "NPS4", 1), skipped=(1,)), "would have to keep NPS1 beside NPS4"),
    ],
)
def test_what_can_not_be_had_is_said_in_three_parts(found: Any, wanted: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        aim(found, "p", wanted)
    assert said in refused.value.one_line()
    assert all((refused.value.expected, refused.value.remedy))


def test_a_skipped_gpu_that_can_not_be_read_is_no_reason_to_refuse() -> None:
    found = gpus(2)
    found[1] = ModeGpu(index=1, uuid="0000:01:00.0", problem=UNREADABLE)
    assert modes(aim(found, "p", profile(("CPX", "NPS1", 1), skipped=(1,)))) == ["cpx_nps1"]


def test_layouts_of_an_order_are_plans_again() -> None:
    plans = aim(gpus(), "p", profile(("CPX", "NPS4", 4)))
    layouts = [one.layout for one in plans]
    assert by_modes(layouts)
    assert label_of(layouts) == "dcm.amd.com/gpu-config-profile"
    assert not by_modes([MigLayout(gpu="GPU-1", enabled=True, devices={"1g.10gb": 7})])
    assert plan(gpus(), of_layouts(gpus(), layouts)) == plans


@pytest.mark.parametrize(
    "layout",
    [
        MigLayout(gpu="0000:00:00.0", enabled=True, devices={"1g.10gb": 7}),
        MigLayout(gpu="0000:00:00.0", enabled=True, devices={"cpx_nps4": 1, "spx_nps1": 1}),
        MigLayout(gpu="0000:00:00.0", enabled=False),
        MigLayout(gpu="0000:00:00.0", enabled=True, devices={"spx_nps4": 1}),
        MigLayout(gpu="0000:00:00.0", enabled=True, devices={"tpx_nps1": 1}),
        MigLayout(gpu="0000:77:00.0", enabled=True, devices={"cpx_nps4": 1}),
        MigLayout(gpu="../../etc", enabled=True, devices={"cpx_nps4": 1}),
    ],
)
def test_an_order_that_can_not_be_obeyed_is_refused(layout: MigLayout) -> None:
    with pytest.raises(LayoutError):
        of_layouts(gpus(), [layout])


def test_a_mode_has_one_name() -> None:
    assert PartitionMode("CPX", "NPS4").name == "cpx_nps4"
