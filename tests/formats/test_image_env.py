"""What containers ask for by environment and mounts: the semantics of section by section, and hostile words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.image_env import (
    CAPABILITIES,
    MAX_WORD,
    MAX_WORDS,
    ImageEnv,
    Visible,
    devices_of_mounts,
    parse_capabilities,
    parse_devices,
)

CUDA_BASE = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin",
    "CUDA_VERSION=12.5.0",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.5 brand=unknown,driver>=535,driver<536",
)


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("", Visible()),
        ("void", Visible()),
        (" , ,", Visible()),
        ("all", Visible(all=True)),
        ("0,all", Visible(all=True)),
        ("none", Visible(none=True)),
        ("0", Visible(ids=("0",))),
        ("0, 1:0 ,GPU-1", Visible(ids=("0", "1:0", "GPU-1"))),
        ("0,0", Visible(ids=("0",))),
        ("none,0", Visible(ids=("0",))),
        ("nvidia.com/gpu=0", Visible(ids=("nvidia.com/gpu=0",))),
        ("ALL", Visible(ids=("ALL",))),
    ],
)
def test_visible_devices(text: str, visible: Visible) -> None:
    assert parse_devices(text) == visible
    assert ImageEnv.of([f"NVIDIA_VISIBLE_DEVICES={text}"]).visible_devices() == visible


def test_nothing_is_asked_for_without_the_variable() -> None:
    assert not ImageEnv.of(["PATH=/bin"]).visible_devices()
    assert bool(Visible(none=True))


def test_of_a_name_twice_the_last_counts() -> None:
    env = ImageEnv.of(["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void", "broken"])
    assert not env.visible_devices()


def test_a_legacy_image_asks_for_all_only_where_that_is_honoured() -> None:
    legacy = ImageEnv.of(["CUDA_VERSION=9.0.176"])
    assert legacy.legacy
    assert not legacy.visible_devices()
    assert legacy.visible_devices(legacy_all=True) == Visible(all=True)
    silent = ImageEnv.of(["CUDA_VERSION=9.0.176", "NVIDIA_VISIBLE_DEVICES="])
    assert not silent.visible_devices(legacy_all=True)
    assert not ImageEnv.of(CUDA_BASE).legacy
    assert not ImageEnv.of(["CUDA_VERSION=12.0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"]).visible_devices(legacy_all=True)


def test_swarm_variables_replace_the_usual_one() -> None:
    env = ImageEnv.of(["NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_GPU=GPU-1,GPU-2", "OTHER=GPU-3"])
    assert env.visible_devices(instead=("DOCKER_RESOURCE_GPU", "OTHER")).ids == ("GPU-1", "GPU-2", "GPU-3")
    assert env.visible_devices(instead=("MISSING",)).all


@pytest.mark.parametrize(
    ("text", "capabilities"),
    [
        ("", {"compute", "utility"}),
        ("utility", {"utility"}),
        ("utility, compute", {"utility", "compute"}),
        ("video", {"video", "compute"}),
        ("all", set(CAPABILITIES)),
        ("compute,all", set(CAPABILITIES)),
    ],
)
def test_capabilities(text: str, capabilities: set[str]) -> None:
    assert parse_capabilities(text) == capabilities


def test_only_supported_capabilities() -> None:
    assert parse_capabilities("all", supported={"compute"}) == {"compute"}
    assert parse_capabilities("", supported={"utility"}) == {"utility"}
    with pytest.raises(ConfigError, match="graphics"):
        parse_capabilities("graphics", supported={"compute", "utility"})
    with pytest.raises(ConfigError) as refused:
        parse_capabilities("utilities")
    assert "did you mean" in refused.value.remedy


def test_capabilities_that_nobody_named() -> None:
    assert ImageEnv.of([]).capabilities() is None
    assert ImageEnv.of(["NVIDIA_DRIVER_CAPABILITIES= "]).capabilities() is None
    assert ImageEnv.of(CUDA_BASE).capabilities() == {"compute", "utility"}


def test_requirements() -> None:
    assert ImageEnv.of(CUDA_BASE).requirements() == {
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.5 brand=unknown,driver>=535,driver<536"
    }
    assert ImageEnv.of([*CUDA_BASE, "NVIDIA_DISABLE_REQUIRE=true"]).requirements() == {}
    assert ImageEnv.of([*CUDA_BASE, "NVIDIA_DISABLE_REQUIRE=1"]).requirements() == {}
    assert ImageEnv.of([*CUDA_BASE, "NVIDIA_DISABLE_REQUIRE=no"]).requirements()
    jetson = ImageEnv.of(["NVIDIA_REQUIRE_JETPACK=csv-mounts=all", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=x"])
    assert jetson.requirements() == {}
    own = ImageEnv.of(["NVIDIA_REQUIRE_MINE=arch>=9.0", "NVIDIA_REQUIRE_EMPTY= "])
    assert own.requirements() == {"NVIDIA_REQUIRE_MINE": "arch>=9.0"}


def test_a_legacy_image_requires_the_cuda_that_it_was_made_with() -> None:
    assert ImageEnv.of(["CUDA_VERSION=12.10.1"]).requirements() == {"CUDA_VERSION": "cuda>=12.10"}
    assert ImageEnv.of(["CUDA_VERSION=9"]).requirements() == {"CUDA_VERSION": "cuda>=9"}
    assert ImageEnv.of(["CUDA_VERSION=nightly"]).requirements() == {}


def test_other_devices() -> None:
    env = ImageEnv.of(["NVIDIA_GDS=enabled", "NVIDIA_MOFED=true", "NVIDIA_GDRCOPY=enabled", "NVIDIA_IMEX_CHANNELS=0,2"])
    assert env.extra_devices() == (
        "nvidia.com/gds=all",
        "nvidia.com/gdrcopy=all",
        "nvidia.com/imex-channel=0",
        "nvidia.com/imex-channel=2",
    )
    assert ImageEnv.of(["NVIDIA_IMEX_CHANNELS=all"]).extra_devices() == ()


def test_mounts() -> None:
    at = "/var/run/nvidia-container-devices"
    assert devices_of_mounts(
        [
            ("/dev/null", f"{at}/GPU-1"),
            ("/dev/null", f"{at}/cdi/nvidia.com/gpu/0"),
            ("/dev/null", f"{at}/cdi/nvidia.com/gpu=1"),
            ("/dev/null", f"{at}/imex/3"),
            ("/dev/null", f"{at}/cdi/short"),
            ("/dev/null", f"{at}/a/b"),
            ("/dev/zero", f"{at}/GPU-2"),
            ("/dev/null", "/elsewhere/GPU-3"),
        ]
    ) == Visible(ids=("GPU-1", "nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/imex-channel=3"))
    assert devices_of_mounts([("/dev/null", f"{at}/all")]) == Visible(all=True)
    assert not devices_of_mounts([])


def test_too_many_and_too_long_words_are_refused() -> None:
    for text in (",".join(map(str, range(MAX_WORDS + 1))), "x" * (MAX_WORD + 1)):
        with pytest.raises(ConfigError, match="too long"):
            parse_devices(text)
    assert len(parse_devices(",".join(map(str, range(MAX_WORDS)))).ids) == MAX_WORDS


@given(st.text(max_size=200))
def test_any_text_that_is_not_too_long_is_understood(text: str) -> None:
    visible = parse_devices(text)
    assert len(set(visible.ids)) == len(visible.ids)
    assert all(word and word == word.strip() and "," not in word for word in visible.ids)
    assert not (visible.all and visible.ids)
