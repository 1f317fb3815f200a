"""``kgpu nri`` as a program: its words, its refusals, and one whole way from a runtime to a container's devices."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.base.files import write_atomic
from kgpu.cli.main import main
from kgpu.cli.nri import _run
from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, build_spec, dump_spec
from kgpu.kubelet.nri.fake import FakeNriRuntime
from kgpu.kubelet.nri.model import ContainerAdjustment, NriContainer, NriPod
from kgpu.kubelet.nri.session import CallRefusedError
from kgpu.toolkit.nri.config import nri_config
from kgpu.toolkit.nri.run import NriContext


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--namespace", "No Namespace"], "correct --namespace (or "),
        (["--allow", "Foo"], "correct --allow (or KGPU_NRI_ALLOWED)"),
        (["--management-namespace", "*"], "correct --management-namespace (or "),
        (["--index", "100"], "0 to 99"),
        (["--socket", "relative"], "absolute"),
        (["--kubeconfig", "/nowhere"], "kubeconfig"),
    ],
)
def test_bad_words_are_explained(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "nri", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "to do:" in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "nri", "--help"]) == 0
    out = capsys.readouterr().out
    for word in ("--namespace", "--allow", "--management-namespace", "nvidia.cdi.k8s.io", "kgpu nri"):
        assert word in out


async def test_a_state_is_told_once(folder: Path, monkeypatch, caplog) -> None:
    async def say(ctx: NriContext) -> None:
        for ready, reason in ((False, "a"), (False, "a"), (True, "a"), (False, "b"), (False, "b")):
            ctx.on_state(ready, reason)

    monkeypatch.setattr("kgpu.toolkit.nri.run.run", say)
    monkeypatch.setattr("kgpu.cli.nri._reader", lambda _root: None)
    caplog.set_level("INFO", logger="kgpu.nri")
    await _run(nri_config(namespace="ops"), [], folder, "", "")
    assert caplog.messages == ["waiting: a", "serving: a", "waiting: b"]


async def test_it_serves_a_runtime_until_it_is_stopped(folder: Path) -> None:
    device = CdiDevice(names=("0",), nodes=(CdiDeviceNode(path="/dev/nvidia0"),))
    write_atomic(folder / "spec.json", dump_spec(build_spec(kind="nvidia.com/gpu", devices=[device]), "json"))
    runtime = FakeNriRuntime(folder / "nri.sock")
    await runtime.start()
    words = ["nri", "--namespace", "ops", "--socket", str(runtime.socket), "--spec-dir", str(folder),
             "--pod-resources-socket", str(folder / "none.sock"), "--root", str(folder)]  # fmt: skip
    env = {key: value for key, value in os.environ.items() if not key.startswith(("NRI_", "KGPU_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kgpu", *words, env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        await runtime.has_plugins(seconds=300)
        asks = NriContainer(name="c", env=("NVIDIA_VISIBLE_DEVICES=0",))
        assert await runtime.create(NriPod(name="p", namespace="user"), NriContainer(name="c")) == (None,)
        with pytest.raises(CallRefusedError, match="the kubelet does not say"):
            await runtime.create(NriPod(name="p", namespace="ops"), asks)
        quiet = NriPod(name="p", namespace="ops", annotations={"nvidia.cdi.k8s.io": ""})
        assert await runtime.create(quiet, asks) == (None,)
        assert runtime.plugins == (("10", "kgpu-toolkit"),)
    finally:
        process.terminate()
        _, err = await process.communicate()
        await runtime.stop()
    assert "serving" in err.decode()
    assert "requirements of images are not checked" in err.decode()


async def test_adjustments_reach_the_runtime(folder: Path) -> None:
    device = CdiDevice(names=("all",), nodes=(CdiDeviceNode(path="/dev/nvidia0"),))
    spec = build_spec(kind="management.nvidia.com/gpu", devices=[device])
    write_atomic(folder / "spec.json", dump_spec(spec, "json"))
    runtime = FakeNriRuntime(folder / "nri.sock")
    await runtime.start()
    words = [
        "nri",
        "--namespace",
        "ops",
        "--socket",
        str(runtime.socket),
        "--spec-dir",
        str(folder),
        "--root",
        str(folder),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kgpu", *words, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await runtime.has_plugins(seconds=300)
        asking = NriPod(
            name="p", namespace="ops", annotations={"nvidia.cdi.k8s.io/pod": "management.nvidia.com/gpu=all"}
        )
        assert await runtime.create(asking, NriContainer(name="c")) == (
            ContainerAdjustment(cdi_devices=("management.nvidia.com/gpu=all",)),
        )
    finally:
        process.terminate()
        await process.wait()
        await runtime.stop()
