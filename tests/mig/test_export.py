"""A node's layout as a config: entries are merged, filters and indexes say no more than is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kgpu.formats.mig_config import parse_mig_configs
from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from kgpu.hw.partitioning import PartitionError
from kgpu.mig.export import export, unsaid
from kgpu.mig.node_plan import plan_node
from kgpu.mig.survey import SurveyedGpu, survey
from kgpu.mig.wanted import LayoutError
from tests.mig.test_apply import OFF, applied, entry


async def node(*families: str, cut: Any = ()) -> tuple[SurveyedGpu, ...]:
    driver = FakePartitioner(*families)
    await applied(driver, *cut)
    return tuple(survey(gpu) for gpu in await driver.gpus())


def entries(gpus: tuple[SurveyedGpu, ...]) -> list[dict[str, Any]]:
    document = export(gpus)
    assert document["version"] == "v1"
    name, again = parse_mig_configs(json.dumps(document)).chosen()
    assert name == "current"
    if not list(unsaid(gpus)):
        assert not any(one.steps for one in plan_node(gpus, again)), "it says what is there"
    return document["mig-configs"]["current"]


async def test_gpus_that_are_cut_alike_share_an_entry() -> None:
    seven = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    assert entries(await node("h100-80gb", "h100-80gb", cut=[entry(**{"1g.10gb": 7})])) == [seven]
    assert entries(await node("h100-80gb", "a100-40gb", cut=[OFF])) == [{"devices": "all", "mig-enabled": False}]


async def test_gpus_of_one_model_that_are_cut_otherwise_are_told_apart_by_index() -> None:
    gpus = await node(*["h100-80gb"] * 3, cut=[entry([0, 2], **{"3g.40gb": 1, "1g.10gb+me": 1})])
    assert entries(gpus) == [
        {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"3g.40gb": 1, "1g.10gb+me": 1}},
        {"devices": [1], "mig-enabled": False},
    ]


async def test_models_that_are_cut_otherwise_are_told_apart_by_filter() -> None:
    gpus = await node("h100-80gb", "a100-40gb", "h100-80gb", cut=[entry([0, 2], **{"7g.80gb": 1})])
    assert entries(gpus) == [
        {"device-filter": "0x233010DE", "devices": "all", "mig-enabled": True, "mig-devices": {"7g.80gb": 1}},
        {"device-filter": "0x20B010DE", "devices": "all", "mig-enabled": False},
    ]
    gpus = await node("h100-80gb", "a100-40gb", "h100-80gb", cut=[entry([0], **{"7g.80gb": 1})])
    assert entries(gpus) == [
        {"device-filter": "0x233010DE", "devices": [0], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}},
        {"device-filter": ["0x20B010DE", "0x233010DE"], "devices": [1, 2], "mig-enabled": False},
    ]


async def test_parts_of_gpu_instances_keep_their_names() -> None:
    gpus = await node("h100-80gb", cut=[entry(**{"1c.3g.40gb": 3, "1g.20gb": 1})])
    assert entries(gpus)[0]["mig-devices"] == {"1c.3g.40gb": 3, "1g.20gb": 1}
    assert list(unsaid(gpus)) == []


async def test_what_no_config_can_say_is_told() -> None:
    driver = FakePartitioner("h100-80gb")
    await applied(driver, entry(**{"2g.20gb": 1}))
    (uuid,) = driver.state
    await driver.create_instance(uuid, 0, 0)
    gpus = (survey(await driver.gpu(uuid)),)
    assert entries(gpus)[0]["mig-devices"] == {"2g.20gb": 1}
    assert [line for line in unsaid(gpus) if "1 without a compute instance" in line]


async def test_nothing_is_written_of_gpus_that_can_not_be_read() -> None:
    with pytest.raises(LayoutError, match="has no GPUs"):
        export(())
    (gpu,) = await node("h100-80gb")
    with pytest.raises(PartitionError, match="lost"):
        export((replace(gpu, problem=PartitionError("GPU 0 is lost", "a GPU that answers", "reset it")),))


async def test_a_gpu_without_mig_is_one_with_mig_off() -> None:
    assert entries(await node(WITHOUT_MIG)) == [{"devices": "all", "mig-enabled": False}]


async def test_a_double_memory_slice_that_mig_parted_made_is_said() -> None:
    driver = FakePartitioner("h100-80gb")
    (gpu,) = await driver.gpus()
    await driver.set_mode(gpu.uuid, True)
    await driver.create_compute(gpu.uuid, await driver.create_instance(gpu.uuid, 9, 0), 0, 0)
    found = (survey(await driver.gpu(gpu.uuid)),)
    assert list(unsaid(found)) == []
    assert entries(found) == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.20gb": 1}}]
