"""Requirements of images: grammar, numbers, three-valued truth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.requirements import Fulfillment, GpuFacts, parse_requirement, unmet

H100 = GpuFacts(cuda="12.4", driver="550.54.15", arch="9.0", brand="nvidia", subject="GPU 0 (H100)")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("cuda>=12.4", Fulfillment.MET),
        ("cuda>=12.10", Fulfillment.UNMET),
        ("cuda>12.4", Fulfillment.UNMET),
        ("cuda=12.4.0", Fulfillment.MET),
        ("cuda!=12.4", Fulfillment.UNMET),
        ("cuda<13", Fulfillment.MET),
        ("cuda<=12.3.9", Fulfillment.UNMET),
        ("driver>=550,driver<551", Fulfillment.MET),
        ("driver>=535,driver<536", Fulfillment.UNMET),
        ("driver>=535,driver<536 cuda>=12", Fulfillment.MET),
        ("arch>=8.9", Fulfillment.MET),
        ("arch>=10.0", Fulfillment.UNMET),
        ("brand=nvidia", Fulfillment.MET),
        ("brand=NVIDIA", Fulfillment.MET),
        ("brand!=tesla", Fulfillment.MET),
        ("brand=tesla,driver>=550 cuda>=13", Fulfillment.UNMET),
        (
            "cuda>=12.5 brand=unknown,driver>=535,driver<536 brand=nvidia,driver>=550,driver<551",
            Fulfillment.MET,
        ),
    ],
)
def test_verdicts(text: str, verdict: Fulfillment) -> None:
    assert parse_requirement(text).verdict(H100) is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("brand=tesla", Fulfillment.UNKNOWN),
        ("brand=tesla,driver>=600", Fulfillment.UNMET),  # whatever the brand is
        ("brand=tesla driver>=500", Fulfillment.MET),
        ("brand=tesla,driver>=500", Fulfillment.UNKNOWN),
        ("arch>=9.0", Fulfillment.UNKNOWN),
    ],
)
def test_what_is_not_known_decides_nothing(text: str, verdict: Fulfillment) -> None:
    assert parse_requirement(text).verdict(GpuFacts(cuda="12.4", driver="550.54")) is verdict


def test_a_driver_version_with_an_ending() -> None:
    assert parse_requirement("driver>=550").verdict(GpuFacts(driver="550.54.15-grid")) is Fulfillment.MET
    assert parse_requirement("driver>=550").verdict(GpuFacts(driver="unknown")) is Fulfillment.UNKNOWN


@pytest.mark.parametrize(
    "text",
    ["", " ", "cuda", "cuda>=", "cuda=>12", "cuda>=twelve", "brand>tesla", "cuda>=12,", ",", "gpus>=2", "cuda >= 12",
     "cuda>=12;rm", "cuda>=" + "1." * 20 + "1", "x" * 20000],
)  # fmt: skip
def test_what_is_no_requirement(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_requirement(text, name="NVIDIA_REQUIRE_X")
    assert "NVIDIA_REQUIRE_X" in refused.value.what
    assert len(refused.value.one_line()) < 600


def test_near_misses_are_named() -> None:
    with pytest.raises(ConfigError, match="driver"):
        parse_requirement("drivers>=5")


def test_unmet_names_the_gpu_and_the_way_out() -> None:
    problem = unmet({"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}, [H100])
    assert problem is not None
    assert "GPU 0 (H100)" in problem.what
    assert "cuda 12.4" in problem.what
    assert "NVIDIA_DISABLE_REQUIRE=true" in problem.remedy


def test_every_requirement_and_every_gpu() -> None:
    old = GpuFacts(cuda="12.4", driver="550.54.15", arch="7.0", subject="GPU 1")
    assert unmet({"A": "cuda>=12", "B": "arch>=8"}, [H100]) is None
    assert unmet({"A": "cuda>=12", "B": "arch>=8"}, [H100, old]) is not None
    assert unmet({"A": "cuda>=13", "B": "arch>=8"}, [H100]) is not None
    assert unmet({}, [old]) is None
    assert unmet({"A": "cuda>=13"}, []) is None


numbers = st.lists(st.integers(0, 999), min_size=1, max_size=4)


@given(numbers, numbers)
def test_versions_compare_as_numbers(first: list[int], second: list[int]) -> None:
    width = max(len(first), len(second))
    a, b = (tuple(one + [0] * (width - len(one))) for one in (first, second))
    facts = GpuFacts(driver=".".join(map(str, first)))
    text = ".".join(map(str, second))
    for sign, truth in ((">=", a >= b), ("<", a < b), ("=", a == b), ("!=", a != b), (">", a > b), ("<=", a <= b)):
        assert parse_requirement(f"driver{sign}{text}").verdict(facts) is (
            Fulfillment.MET if truth else Fulfillment.UNMET
        )


@given(st.text(max_size=80))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        requirement = parse_requirement(text)
    except ConfigError:
        return
    assert requirement.verdict(GpuFacts()) is Fulfillment.UNKNOWN


def test_an_image_can_not_keep_the_runtime_waiting_with_very_many_requirements() -> None:
    many = {f"NVIDIA_REQUIRE_{number}": "cuda>=12.4" for number in range(20000)}
    with pytest.raises(ConfigError, match="characters"):
        unmet(many, [GpuFacts(cuda="13.0")])
    some = dict(list(many.items())[:500])
    assert unmet(some, [GpuFacts(cuda="13.0")]) is None
