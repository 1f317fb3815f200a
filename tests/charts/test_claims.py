"""GPUs by claims: what the chart makes of that, where, and what it refuses."""

from __future__ import annotations

import kubernetes_validate
import pytest

from tests.charts.conftest import Chart, Made

ON = "dra.enabled=true"
SERVED = ("--api-versions", "resource.k8s.io/v1/DeviceClass")
VARIABLES = {"KGPU_DRA", "KGPU_ALLOCATION", "KGPU_DRA_FEATURE_GATES"}


def settings(made: Made) -> dict[str, str]:
    (container,) = made.one("Deployment", "gpu-operator")["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"] if one["name"] in VARIABLES}


def test_classes_have_the_names_and_selectors_of_nvidias_driver(chart: Chart) -> None:
    made = chart(ON, words=SERVED)
    gpu, mig = (made.one("DeviceClass", name) for name in ("gpu.nvidia.com", "mig.nvidia.com"))
    assert gpu["spec"].pop("extendedResourceName") == "nvidia.com/gpu"
    for kind, made_class in (("gpu", gpu), ("mig", mig)):
        expression = f"device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{kind}'"
        assert made_class["spec"] == {"selectors": [{"cel": {"expression": expression}}]}
        kubernetes_validate.validate(made_class, "1.34", strict=True)


def test_the_other_vendors_classes_select_their_drivers_devices(chart: Chart) -> None:
    made = chart(ON, words=SERVED)
    amd, gaudi = (made.one("DeviceClass", name) for name in ("gpu.amd.com", "gaudi.intel.com"))
    assert gaudi["spec"].pop("extendedResourceName") == "intel.com/gaudi"
    for made_class in (amd, gaudi):
        expression = f"device.driver == '{made_class['metadata']['name']}'"
        assert made_class["spec"] == {"selectors": [{"cel": {"expression": expression}}]}
        kubernetes_validate.validate(made_class, "1.34", strict=True)


@pytest.mark.parametrize(
    ("off", "left"),
    [
        ("nvidia", {"gpu.amd.com", "gaudi.intel.com"}),
        ("amd", {"gpu.nvidia.com", "mig.nvidia.com", "gaudi.intel.com"}),
        ("gaudi", {"gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com"}),
    ],
)
def test_each_vendors_classes_can_be_left_out(chart: Chart, off: str, left: set[str]) -> None:
    made = chart(ON, f"dra.deviceClasses.{off}=false", words=SERVED)
    assert {one["metadata"]["name"] for one in made.objects if one["kind"] == "DeviceClass"} == left


@pytest.mark.parametrize(
    ("sets", "words"), [((ON,), ()), ((), SERVED), ((ON,), ("--api-versions", "resource.k8s.io/v1beta1/DeviceClass"))]
)
def test_classes_are_there_only_where_asked_for_and_served(
    chart: Chart, sets: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert not chart(*sets, words=words).has("DeviceClass")


def test_nothing_of_it_reaches_an_operator_without_the_switch(chart: Chart) -> None:
    assert settings(chart("allocation=device-plugin", "dra.featureGates.DynamicMIG=true")) == {}


def test_the_operator_is_told(chart: Chart) -> None:
    assert settings(chart(ON)) == {"KGPU_DRA": "true", "KGPU_ALLOCATION": "device-plugin"}
    told = settings(
        chart(ON, "allocation=dra", "dra.featureGates.DynamicMIG=true", "dra.featureGates.MPSSupport=false")
    )
    assert told == {
        "KGPU_DRA": "true",
        "KGPU_ALLOCATION": "dra",
        "KGPU_DRA_FEATURE_GATES": "DynamicMIG=true,MPSSupport=false",
    }


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("allocation=dra",), "set dra.enabled=true"),
        (("allocation=claims", ON), "allocation"),
        (("dra=null",), "dra is empty"),
        ((ON, "dra.featureGates.DynamicMIG=perhaps"), "DynamicMIG"),
        ((ON, "dra.enable=true"), "enabled"),
        ((ON, "dra.deviceClasses.intel=true"), "intel"),
    ],
)
def test_what_can_not_work_is_refused(chart: Chart, sets: tuple[str, ...], words: str) -> None:
    made = chart(*sets)
    assert made.code != 0
    assert words in made.error


def test_an_empty_default_is_the_charts_own(chart: Chart) -> None:
    assert settings(chart(ON, "allocation=null"))["KGPU_ALLOCATION"] == "device-plugin"
