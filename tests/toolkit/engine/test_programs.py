"""Asking the engines' own programs; ``test_real_containerd`` asks a real one."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from kgpu.host.engines.model import Engine, EnginePlace
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine.programs import EngineValidator, parse_version, run_program

HOST = MountedPaths.at("/")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376", (2, 1, 4)),
        ("containerd://1.7.30-k3s1", (1, 7, 30)),
        ("crio version 1.31.0\nVersion: 1.31.0", (1, 31, 0)),
        ("Docker version 28.3.2, build 578ccf6", (28, 3, 2)),
        ("containerd dev", None),
    ],
)
def test_versions(text, version) -> None:
    assert parse_version(text) == version


async def test_a_program_that_can_not_be_asked_says_nothing(tmp_path) -> None:
    place = EnginePlace(
        engine=Engine.DOCKER, flavour="docker", config="/etc/docker/daemon.json", binary="/nowhere/dockerd"
    )
    judge = EngineValidator(HOST, str(tmp_path))
    assert await judge.problem(place, {place.config: b"{}"}) == ""
    old = tmp_path / "dockerd"
    old.write_text("#!/bin/sh\necho 'unknown flag: --validate' >&2\nexit 125\n")
    old.chmod(0o755)
    assert await judge.problem(replace(place, binary=str(old)), {place.config: b"{}"}) == ""
    old.write_text('#!/bin/sh\necho "$@"; cat "$3" >&2; echo unable to configure >&2\nexit 1\n')
    assert "unable to configure" in await judge.problem(replace(place, binary=str(old)), {place.config: b"{}"})


async def test_crio_is_asked_about_its_files(tmp_path) -> None:
    program = tmp_path / "crio"
    program.write_text('#!/bin/sh\ncat "$2" "$4"/*\nexit 1\n')
    program.chmod(0o755)
    place = EnginePlace(
        engine=Engine.CRIO, flavour="crio", config="/etc/crio/crio.conf", drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
        binary=str(program),
    )  # fmt: skip
    said = await EngineValidator(HOST, str(tmp_path / "s")).problem(
        place, {place.config: b"one\n", "/etc/crio/crio.conf.d/10": b"two\n", place.drop_in: b"three\n"}
    )
    assert said == "one two three"


async def test_a_program_that_hangs_is_ended() -> None:
    answer = await run_program(HOST, (sys.executable, "-c", "import time; time.sleep(600)"), seconds=0.2)
    assert answer is not None
    assert answer.code == 124


async def test_output_without_end_is_bounded() -> None:
    answer = await run_program(HOST, (sys.executable, "-c", "print('x' * 5_000_000)"))
    assert answer is not None
    assert answer.code == 0
    assert len(answer.text) < 1_200_000


async def test_a_root_without_the_program(tmp_path) -> None:
    assert await run_program(MountedPaths.at(tmp_path), ("/bin/nothing",)) is None
