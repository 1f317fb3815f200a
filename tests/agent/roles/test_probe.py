"""The role ``probe`` on a simulated node: said at the start, again after a change, and never more often than it may."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.agent.host import Host
from kgpu.agent.options import AgentOptions
from kgpu.agent.remembered_config import DefaultConfig
from kgpu.agent.roles import probe
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.boot import boot_id
from kgpu.base.clock import SystemClock
from kgpu.base.supervise import RoleHandle, RoleState
from kgpu.discovery.features.sources import read_node
from kgpu.doctor.host_facts import decode
from kgpu.doctor.sources import host as host_source
from kgpu.doctor.sources.host import fingerprint, gather
from kgpu.doctor.sources.probed import MAX_LINE, found_in
from kgpu.host import pci
from kgpu.hw.open import open_reader
from kgpu.hw.simulator import kernel_log, operate

SECONDS = 60.0


@pytest.fixture
def root(sim_root: Callable[..., Path], tmp_path: Path) -> Path:
    root = sim_root("hgx-h100", gpus=2)
    config = root / "etc" / "containerd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('version = 3\n# password = "hunter22hunter22"\n')
    return root


@contextlib.asynccontextmanager
async def probing(root: Path, folder: Path, said: Said) -> AsyncIterator[RoleHandle]:
    async def reader() -> Any:
        return open_reader(driver_root=root)

    shared = SharedReader(reader)
    options = AgentOptions(
        root=root, host_root=root, node_name="gpu-1", env={}, state_dir=folder, cdi_dir=folder / "cdi",
        validations_dir=folder / "validations", kubelet_socket=folder / "dp" / "kubelet.sock",
    )  # fmt: skip

    def no_api() -> Any:
        raise AssertionError("it needs no API server")

    host = Host(options=options, reader=shared, config=DefaultConfig(), decide=lambda _: None, api=no_api)
    handle = RoleHandle("probe", SystemClock())
    with contextlib.redirect_stdout(said):
        task = asyncio.create_task(probe.probe(host, handle))
        try:
            yield handle
        finally:
            task.cancel()
            await asyncio.wait([task])
            await shared.close()


class Said(io.TextIOBase):
    """Standard output, by whole lines: what is read while a thread writes may end in the middle of one."""

    def __init__(self) -> None:
        self._text = ""

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    async def __call__(self, count: int) -> dict[str, Any]:
        """The facts of that line, waited for."""
        async with asyncio.timeout(SECONDS):
            while self._text.count("\n") < count:  # noqa: ASYNC110 - a thread writes it
                await asyncio.sleep(0.02)
        line = self._text.split("\n")[count - 1]
        found = found_in(line.encode())
        assert found is not None
        assert len(line) < MAX_LINE
        return found


async def test_what_the_node_has_is_said_and_what_changes_is_said_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LOOK", 0.02)
    monkeypatch.setattr(probe, "PAUSE", 0.05)
    monkeypatch.setattr(probe, "LONGEST", 0.05)
    (tmp_path / "validations").mkdir()
    (tmp_path / "validations" / "driver-ready").touch()
    said = Said()
    async with probing(root, tmp_path, said) as handle:
        first = await said(1)
        assert (first["node"], first["driverVersion"] != "") == ("gpu-1", True)
        assert [one["name"] for one in first["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
        assert set(first["gpus"][0]["readings"]) >= {"utilization_percent", "persistence_mode"}
        assert "energy_mj" not in first["gpus"][0]["readings"]
        assert first["validations"] == ["driver-ready"]
        text = first["files"]["/etc/containerd/config.toml"]["text"]
        assert "version = 3" in text
        assert "hunter22" not in text
        await until(lambda: handle.status.state is RoleState.RUNNING)  # once it is said
        pci = [gpu["pci_bus_id"] for gpu in operate.snapshot(root)["gpus"]]
        kernel_log.xid(root, pci[1], 79, "GPU has fallen off the bus.")
        second = await said(2)
        assert any("79" in line for line in second["kernelLog"])
        (root / "etc" / "containerd" / "config.toml").write_text("version = 2\n")
        third = await said(3)
        assert third["files"]["/etc/containerd/config.toml"]["text"] == "version = 2\n"


@pytest.mark.parametrize(("model", "fault"), [("gaudi3", "port-down"), ("arc", "hot")])
async def test_a_link_and_heat_are_said_when_they_come_and_when_they_go(
    *, model: str, fault: str, sim_root: Callable[..., Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(probe, "LOOK", 0.02)
    monkeypatch.setattr(probe, "PAUSE", 0.05)
    monkeypatch.setattr(probe, "LONGEST", 0.05)
    root = sim_root(model, gpus=2)

    def sick(facts: dict[str, Any]) -> list[bool]:
        gpus = decode(facts).gpus or ()
        return [bool(gpu.ports_down) or gpu.hot for gpu in gpus]

    said = Said()
    async with probing(root, tmp_path, said):
        count = 1
        assert sick(await said(count)) == [False, False]
        for act, wanted in (
            (lambda: operate.inject(root, fault, gpu=1), [False, True]),
            (lambda: operate.clear(root), [False, False]),
        ):
            act()
            async with asyncio.timeout(SECONDS):
                while sick(await said(count)) != wanted:
                    count += 1


async def test_what_does_not_change_is_said_when_it_is_time(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LOOK", 0.01)
    monkeypatch.setattr(probe, "AGAIN", 0.1)
    said = Said()
    async with probing(root, tmp_path, said):
        assert (await said(1))["kernelLog"] == (await said(2))["kernelLog"]


def test_a_fingerprint_is_of_what_matters(root: Path, tmp_path: Path) -> None:
    options = AgentOptions(root=root, host_root=root, env={}, cdi_dir=tmp_path / "cdi", state_dir=tmp_path)
    paths = probe.host_paths(options)
    first = fingerprint(paths)
    assert fingerprint(paths) == first
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    assert fingerprint(paths) == first
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert fingerprint(paths) != first


@pytest.mark.parametrize("has", ["no bus", "a bus without accelerators", "accelerators"])
def test_the_bus_is_the_one_that_labels_are_made_from(
    has: str, root: Path, sim_root: Callable[..., Path], tmp_path: Path
) -> None:
    machine = sim_root("l4", gpus=1) if has == "accelerators" else tmp_path / "machine"
    if has == "a bus without accelerators":
        other = machine / pci.DEVICES / "0000:00:00.0"
        other.mkdir(parents=True)
        (other / "vendor").write_text("0x8086\n")
        (other / "class").write_text("0x060000\n")
    options = AgentOptions(
        root=root, host_root=machine, driver_install_dir=root, env={}, cdi_dir=tmp_path / "cdi", state_dir=tmp_path
    )
    found = gather(probe.host_paths(options), node="gpu-1").pci or ()
    devices = read_node(options.pci_roots).features.instances["pci.device"]
    seen = sum(one.pci_class.startswith("03") for one in found)
    assert seen == (1 if has == "accelerators" else 2)
    assert any(one["vendor"] == "10de" for one in devices)
    before = fingerprint(probe.host_paths(options))
    gone = next(one for one in found if one.pci_class.startswith("03"))
    (
        next(one for one in (machine, root) if (one / pci.DEVICES / gone.address).exists()) / pci.DEVICES / gone.address
    ).unlink()
    assert fingerprint(probe.host_paths(options)) != before


def test_only_words_that_matter_are_heard(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:61:00): 79, old\n")
    words = probe.KernelWords(log)
    with log.open("a") as file:
        assert not words.said()
        file.write("6,2,2,-;usb 1-1: new device\n")
        file.flush()
        assert not words.said()
        file.write("6,3,3,-;NVRM: Xid (PCI:0000:61:00): 79, new\n")
        file.flush()
        assert words.said()
        assert not words.said()
    assert not probe.KernelWords(tmp_path / "none").said()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - a status is no event
            await asyncio.sleep(0.01)


async def test_a_look_that_hangs_is_told_and_keeps_nobody_from_ending(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "HANGS", 0.05)
    answer, threads = threading.Event(), set[threading.Thread]()

    def hanging(*given: Any, **named: Any) -> Any:
        threads.add(threading.current_thread())
        answer.wait(SECONDS)
        return gather(*given, **named)

    gather = host_source.gather
    monkeypatch.setattr(host_source, "gather", hanging)
    said = Said()
    async with probing(root, tmp_path, said) as handle:
        await until(lambda: handle.status.why == "HostLookHangs")
        answer.set()
        assert (await said(1))["bootId"] == boot_id()
        await until(lambda: not handle.status.why)
    answer.clear()
    ended = set(threads)
    async with probing(root, tmp_path, said) as again:
        # A thread that has not begun yet is late as well.
        await until(lambda: again.status.why == "HostLookHangs" and bool(threads - ended))
    assert all(thread.daemon for thread in threads)
    assert any(thread.is_alive() for thread in threads)  # and yet the role has ended
    answer.set()
