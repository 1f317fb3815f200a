"""Asking the engines' own programs, the real containerd where there is one."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from host.engines.real_engine import containerd_binary

from kgpu.host.engines import rules
from kgpu.host.engines.model import Engine, Place, Wanted
from kgpu.host.engines.paths import HostPaths
from kgpu.toolkit.engine.programs import EngineValidator, parse_version, run_program, with_version

HOST = HostPaths.at("/")


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(
        engine=Engine.CONTAINERD, flavour="containerd", config=f"{tmp_path}/config.toml",
        drop_in=f"{tmp_path}/conf.d/99-nvidia.toml", binary=containerd_binary(),
    )  # fmt: skip


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


async def test_the_real_containerd_tells_its_version(place) -> None:
    assert (await with_version(place, HOST)).version >= (2, 0, 0)
    assert (await with_version(replace(place, version=(1, 7, 0)), HOST)).version == (1, 7, 0)
    assert (await with_version(replace(place, binary="/nowhere/containerd"), HOST)).version is None


async def test_the_real_containerd_judges_candidates(place, tmp_path) -> None:
    place = await with_version(place, HOST)
    judge = EngineValidator(HOST, str(tmp_path / "scratch"))
    main = b'version = 3\nimports = ["other.toml"]\n'
    other = f"{tmp_path}/other.toml"
    files = {place.config: main, place.drop_in: None, other: b"version = 3\noom_score = 5\n"}
    plan = rules.configure(place, Wanted(), files)
    after = {**files, **{change.path: change.after for change in plan.changes}}
    assert await judge.problem(place, after) == ""
    bad = {**after, place.drop_in: b'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = 1\n'}
    assert "EnableCDI" in await judge.problem(place, bad)
    worse = {**after, other: b"oom_score = 'x'\n"}
    assert "OOMScore" in await judge.problem(place, worse)
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_template_is_judged_as_it_will_be_rendered(place, tmp_path) -> None:
    place = replace(await with_version(place, HOST), drop_in="", template=f"{tmp_path}/config-v3.toml.tmpl")
    judge = EngineValidator(HOST, str(tmp_path / "scratch"))
    files = {place.config: b"version = 3\n", place.template: None}
    plan = rules.configure(place, Wanted(), files)
    assert await judge.problem(place, {**files, **{change.path: change.after for change in plan.changes}}) == ""
    twice = b"# BEGIN kgpu: written by kgpu and taken away with it\nversion = 3\n# END kgpu\n"
    assert await judge.problem(place, {**files, place.template: twice})


async def test_a_program_that_can_not_be_asked_says_nothing(tmp_path) -> None:
    place = Place(engine=Engine.DOCKER, flavour="docker", config="/etc/docker/daemon.json", binary="/nowhere/dockerd")
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
    place = Place(
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
    assert await run_program(HostPaths.at(tmp_path), ("/bin/nothing",)) is None
