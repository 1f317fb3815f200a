"""The configs of a node: which, under which names, for which GPUs. Cases are mig-parted's own (``builder_test.go``)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.formats.mig_config import parse_mig_configs
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.mig_geometry import GEOMETRIES
from kgpu.hw.partitioning import CutGpu, PartitionError
from kgpu.mig.generate import balanced, generate, left_out
from kgpu.mig.model import MigGpu
from kgpu.mig.node_plan import plan_node
from kgpu.mig.survey import SurveyedGpu, survey
from kgpu.mig.wanted import LayoutError

A100, A100_40, H100, A30 = 0x20B510DE, 0x20B010DE, 0x233110DE, 0x20B710DE


def gpu(family: str, device: int, index: int = 0) -> SurveyedGpu:
    return survey(CutGpu(index=index, uuid=f"GPU-{index}", product=f"NVIDIA {family}", device=device, capable=True))


def configs(*gpus: SurveyedGpu) -> dict[str, Any]:
    document = generate(gpus)
    assert document["version"] == "v1"
    parse_mig_configs(json.dumps(document))
    named: dict[str, Any] = document["mig-configs"]
    return named


def of(slices: dict[str, int], *models: str) -> dict[str, Any]:
    only = {"device-filter": list(models)} if models else {}
    return {**only, "devices": "all", "mig-enabled": True, "mig-devices": slices}


def test_one_model() -> None:
    assert configs(gpu("A100-80GB", A100), gpu("A100-80GB", A100, 1)) == {
        "all-disabled": [{"devices": "all", "mig-enabled": False, "mig-devices": {}}],
        "all-enabled": [of({})],
        "all-balanced": [of({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})],
        "all-1g.10gb": [of({"1g.10gb": 7})],
        "all-1g.10gb.me": [of({"1g.10gb+me": 1})],
        "all-1g.20gb": [of({"1g.20gb": 4})],
        "all-2g.20gb": [of({"2g.20gb": 3})],
        "all-3g.40gb": [of({"3g.40gb": 2})],
        "all-4g.40gb": [of({"4g.40gb": 1})],
        "all-7g.80gb": [of({"7g.80gb": 1})],
    }


def test_a_gpu_of_four_slices() -> None:
    named = configs(gpu("A30", A30))
    assert named["all-balanced"] == [of({"1g.6gb": 2, "2g.12gb": 1})]
    assert named["all-2g.12gb.me"] == [of({"2g.12gb+me": 1})]
    assert "all-3g" not in str(named)


def test_models_of_the_same_profiles_share_an_entry_of_each_but_the_balanced() -> None:
    named = configs(gpu("H100 80GB", H100), gpu("A100-80GB", A100, 1))
    slices = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    assert named["all-balanced"] == [of(slices, "0x20B510DE"), of(slices, "0x233110DE")]
    assert named["all-1g.10gb"] == [of({"1g.10gb": 7}, "0x20B510DE", "0x233110DE")]
    assert "device-filter" not in named["all-enabled"][0]


def test_a_profile_of_which_models_take_different_numbers_has_an_entry_for_each() -> None:
    named = configs(gpu("A100-80GB", A100), gpu("A100-40GB", A100_40, 1))
    assert named["all-1g.10gb"] == [of({"1g.10gb": 4}, "0x20B010DE"), of({"1g.10gb": 7}, "0x20B510DE")]
    assert named["all-1g.5gb"] == [of({"1g.5gb": 7}, "0x20B010DE")]


def test_gpus_without_mig_do_not_count_and_those_that_can_not_be_cut_are_left_out() -> None:
    plain = survey(CutGpu(index=1, uuid="GPU-1", product="NVIDIA L4", device=0x27B810DE))
    assert configs(gpu("A30", A30), plain)["all-1g.6gb"] == [of({"1g.6gb": 4})]
    strange = survey(CutGpu(index=1, uuid="GPU-1", product="NVIDIA Z100", device=0x999910DE, capable=True))
    lost = survey(CutGpu(index=2, problem=PartitionError("GPU 2 is lost", "a GPU", "reboot")))
    for other, why in ((strange, "no table of the MIG profiles"), (lost, "GPU 2 is lost")):
        node = [gpu("A30", A30), other]
        named = generate(node)["mig-configs"]
        assert named["all-1g.6gb"] == [of({"1g.6gb": 4}, "0x20B710DE")]
        (told,) = left_out(node)
        assert why in told
    assert left_out([gpu("A30", A30), plain]) == ()


@pytest.mark.parametrize("gpus", [[], [survey(CutGpu(index=0, uuid="GPU-0", product="NVIDIA L4"))]])
def test_a_node_without_mig(gpus: list[SurveyedGpu]) -> None:
    with pytest.raises(LayoutError, match="no MIG-capable devices found on the system"):
        generate(gpus)


@pytest.mark.parametrize("family", GEOMETRIES)
def test_every_config_fits_its_gpu(family: str) -> None:
    found = SurveyedGpu(gpu=MigGpu(index=0, geometry=GEOMETRIES[family]), uuid="GPU-0", device=1)
    read = parse_mig_configs(json.dumps(generate([found]))).configs
    assert len(read) == 3 + len(GEOMETRIES[family].rows)
    for name, entries in read.items():
        (planned,) = plan_node([found], entries)
        assert planned.wanted.enabled == (name != "all-disabled")


def test_counts_and_balance_are_those_of_the_shipped_configs() -> None:
    """mig-parted's static file was written by hand from the same hardware."""
    shipped = default_configs()["mig-configs"]
    for family, device in (("A100-40GB", A100_40), ("A100-80GB", A100), ("H100 80GB", H100), ("A30", A30)):
        found = gpu(family, device)
        for name, (entry,) in configs(found).items():
            same = [
                parse_mig_configs(json.dumps({"version": "v1", "mig-configs": {name: [one]}})).configs[name][0]
                for one in shipped[name]
            ]
            about = [one for one in same if one.is_about(0, device, 0)]
            assert [{str(name): n for name, n in one.profiles} for one in about] == [entry["mig-devices"]], name


def test_a_gpu_that_lacks_a_size_has_no_balance() -> None:
    geometry = GEOMETRIES["a30"]
    lacking = type(geometry)(
        number=0, units=4, slices=4, max_devices=4, rows=tuple(row for row in geometry.rows if row.slices != 2)
    )
    assert balanced(lacking) == {}
    assert balanced(geometry) == {"1g.6gb": 2, "2g.12gb": 1}
