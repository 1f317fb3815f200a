"""What the real containerd says of its version and of the files that kgpu writes for it, whole ones and those of a kill."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.host.engines import rules
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine.programs import EngineValidator, with_version
from tests.host.engines.real_engine import containerd_binary, dump
from tests.toolkit.engine.killing import run_and_kill
from tests.toolkit.engine.support import Host, containerd_host

HOST = MountedPaths.at("/")
MOST_STEPS = 200


@pytest.fixture
def place(tmp_path) -> EnginePlace:
    return EnginePlace(
        engine=Engine.CONTAINERD, flavour="containerd", config=f"{tmp_path}/config.toml",
        drop_in=f"{tmp_path}/conf.d/99-nvidia.toml", binary=containerd_binary(),
    )  # fmt: skip


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
    plan = rules.configure(place, EngineOffer(), files)
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
    plan = rules.configure(place, EngineOffer(), files)
    assert await judge.problem(place, {**files, **{change.path: change.after for change in plan.changes}}) == ""
    twice = b"# BEGIN kgpu: written by kgpu and taken away with it\nversion = 3\n# END kgpu\n"
    assert await judge.problem(place, {**files, place.template: twice})


def test_the_real_containerd_starts_after_every_kill(tmp_path, monkeypatch) -> None:
    binary = containerd_binary()
    # A killed process leaves what it wrote in the kernel's cache; only a power cut would need the disk.
    monkeypatch.setattr(os, "fsync", lambda _fd: None)

    for step in range(1, MOST_STEPS):
        root = tmp_path / f"s{step}"
        model = containerd_host(root)
        folder = root / "etc/containerd"
        place = replace(model.place, config=f"{folder}/config.toml", drop_in=f"{folder}/conf.d/99-nvidia.toml")
        host = Host(Path("/"), place, root / "state")
        killed = run_and_kill(lambda host=host: host.configure(), step)
        assert dump(binary, root / "etc/containerd/config.toml")["version"] == 3
        if not killed:
            break
    assert step > 5
