"""What the command line does with nodes: their folders, the host process, and clear errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import ConfigError, LabError
from kgpu.formats.names import GPU_RESOURCE
from kgpu.kube.client import connect
from kgpu.kube.port import LEASES, NODES
from kgpu.lab import lock
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import STATE_FILE
from kgpu.lab.nodes import manage, objects, spec
from kgpu.lab.nodes.container_processes import is_alive
from kgpu.lab.nodes.spec import SPEC_FILE, NodeTaint
from kgpu.lab.progress import QuietProgress
from tests.lab.nodes.hosting import light
from tests.lab.nodes.support import WAIT_S, until


def test_nodes_are_added_listed_and_numbered_on(folder: Path) -> None:
    taint = NodeTaint(key="gpu", effect="NoSchedule")
    assert manage.add(folder, "l4", 2, labels={"a": "b"}, taints=[taint]) == ["l4-1", "l4-2"]
    assert manage.add(folder, "l4", 9) == [f"l4-{number}" for number in range(3, 12)]
    assert manage.add(folder, "cpu", name_prefix="web") == ["web-1"]
    assert list(manage.listing(folder)) == [*(f"l4-{number}" for number in range(1, 12)), "web-1"]
    one = manage.listing(folder)["l4-2"]
    assert (one.labels, one.taints, one.light) == ({"a": "b"}, (taint,), False)


def test_a_profile_file_is_known_by_its_whole_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kgpu.hw.simulator import profiles

    text = Path(profiles.__file__).with_name("profiles").joinpath("l4.yaml").read_text()
    (folder / "My_Box.yaml").write_text(text)
    monkeypatch.chdir(folder)
    assert manage.add(folder, "./My_Box.yaml") == ["my-box-1"]
    assert manage.listing(folder)["my-box-1"].profile == str(folder / "My_Box.yaml")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"profile": "hgx-h10"}, "hgx-h100"),
        ({"profile": "l4", "count": 0}, "0 nodes"),
        ({"profile": "l4", "count": 5001}, "5001 nodes"),
        ({"profile": "l4", "gpus": 65}, "65 GPUs"),
        ({"profile": "l4", "name_prefix": "No"}, "a node's name"),
        ({"profile": "l4", "mig": ["0:1g.10gb"]}, "no MIG"),
        ({"profile": "hgx-h100", "mig": ["8:1g.10gb"]}, "no GPU 8"),
        ({"profile": "hgx-h100", "mig": ["0:9g.10gb"]}, "9g.10gb"),
        ({"profile": "l4", "config": "version: v1\nflgas: {}\n"}, "flgas"),
        ({"profile": "cpu", "gpus": 1}, "CPU node"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_written(
    arguments: dict[str, Any], what: str, folder: Path
) -> None:
    with pytest.raises((LabError, ConfigError), match=what):
        manage.add(folder, **arguments)
    assert manage.listing(folder) == {}
    assert not (folder / manage.NODES).exists()


def test_a_broken_node_hides_no_other_and_can_be_removed(folder: Path) -> None:
    manage.add(folder, "l4", 2)
    (folder / "nodes" / "l4-1" / SPEC_FILE).write_text("{")
    assert list(manage.listing(folder)) == ["l4-2"]
    assert list(manage.broken(folder)) == ["l4-1"]
    assert [row["name"] for row in manage.status(folder)["nodes"]] == ["l4-2"]
    assert "l4-1" in manage.status(folder)["problems"][0]
    assert manage.remove(folder, ["l4-1"]) == ["l4-1"]
    assert manage.broken(folder) == {}
    assert manage.add(folder, "l4") == ["l4-1"]


def test_a_node_that_is_going_keeps_its_name(folder: Path) -> None:
    manage.add(folder, "l4")
    (folder / "nodes" / "l4-1" / SPEC_FILE).unlink()
    assert manage.add(folder, "l4") == ["l4-2"]


def test_unknown_nodes_are_refused_and_nothing_is_removed(folder: Path) -> None:
    manage.add(folder, "l4", 2)
    with pytest.raises(LabError, match="l4-3"):
        manage.remove(folder, ["l4-1", "l4-3"])
    assert list(manage.listing(folder)) == ["l4-1", "l4-2"]


def test_there_is_nothing_yet(folder: Path) -> None:
    assert manage.listing(folder) == manage.broken(folder) == {}
    found = manage.status(folder)
    assert (found["host"], found["nodes"], found["problems"]) == (0, [], [])
    assert manage.stop_host(folder) is False
    with pytest.raises(LabError, match="no lab"):
        manage.place(folder)
    (folder / "kubeconfig").touch()  # of some other cluster: its nodes are not ours
    with pytest.raises(LabError, match="no lab"):
        manage.place(folder)
    with pytest.raises(LabError, match="no lab"):
        manage.add_to_running(folder, "cpu")
    assert [entry.name for entry in folder.iterdir()] == ["kubeconfig"]


@pytest.fixture
def up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab's folder that looks as if it were up, without a host."""
    made = folder / "up"
    made.mkdir()
    for name in (STATE_FILE, "kubeconfig"):
        (made / name).touch()
    monkeypatch.setattr(manage, "start_host", lambda *_, **__: 0)
    return made


def test_two_that_add_at_the_same_moment_get_different_names(up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both are about to write: one waits here in vain for the other, which waits for the lock.
    barrier, save = threading.Barrier(2), spec.save

    def slow(*arguments: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(1)
        save(*arguments)

    monkeypatch.setattr(spec, "save", slow)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda who: manage.add_to_running(up, "cpu", labels={"who": who}), "ab"))
    assert sorted(found) == [["cpu-1"], ["cpu-2"]]
    assert {one.labels["who"] for one in manage.listing(up).values()} == {"a", "b"}


def test_who_adds_while_the_lab_goes_down_does_not_bring_it_back(up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, place = threading.Event(), manage.place

    def place_and_tell(lab: Path) -> tuple[Path, str]:
        found = place(lab)
        seen.set()
        return found

    monkeypatch.setattr(manage, "place", place_and_tell)
    with ThreadPoolExecutor(1) as pool, lock.held(up, "up"):
        adding = pool.submit(manage.add_to_running, up, "cpu")
        assert seen.wait(60)
        for name in (STATE_FILE, "kubeconfig"):
            (up / name).unlink()
        lock.release_folder(up)
        assert not up.exists()
    with pytest.raises(LabError, match="no lab"):
        adding.result()
    assert not up.exists()


def test_light_and_cpu_nodes_have_no_hardware_to_change(folder: Path) -> None:
    for one in (light("a"), light("b", profile="cpu", gpus=None, light=False), light("c", light=False)):
        spec.save(folder / "nodes" / one.name, one)
    for name in ("a", "b", "nobody"):
        with pytest.raises(LabError, match=f"node {name}") as caught:
            manage.hw_root(folder, name)
        assert "one of: c" in caught.value.expected
    assert manage.hw_root(folder, "c") == folder / "nodes" / "c" / "hw"


def test_a_host_that_can_not_start_says_why(folder: Path) -> None:
    (folder / "kubeconfig").write_text("{")
    with pytest.raises(LabError, match="kubeconfig"):
        manage.start_host(folder, folder / "kubeconfig")
    assert manage.status(folder)["host"] == 0


@pytest.fixture
def lab(folder: Path) -> Iterator[EmbeddedLab]:
    made = EmbeddedLab("manage", folder / "lab", QuietProgress())
    made.up()
    try:
        yield made
    finally:
        made.down()


def test_two_that_add_at_the_same_moment_start_one_host(lab: EmbeddedLab) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(manage.start_host(lab.folder, lab.kubeconfig))) for _ in range(3)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert manage.status(lab.folder)["host"] == found[0]


def test_a_host_that_can_not_be_recorded_does_not_run_on(lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    manage.stop_host(lab.folder)

    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(manage, "write_atomic", full)
        with pytest.raises(LabError, match="No space left"):
            manage.start_host(lab.folder, lab.kubeconfig)
    assert manage._started[-1].poll() is not None
    assert not manage.host_running(lab.nodes)


def test_a_host_without_a_record_is_found_and_ended(lab: EmbeddedLab) -> None:
    pid = manage.start_host(lab.folder, lab.kubeconfig)
    (lab.nodes / manage.HOST / manage.RECORD).unlink()  # as when whoever started it was killed
    assert manage.start_host(lab.folder, lab.kubeconfig) == pid
    assert manage.status(lab.folder)["host"] == pid
    assert manage.stop_host(lab.folder)
    assert not is_alive(pid)


async def test_nodes_come_outlive_their_host_and_go(lab: EmbeddedLab) -> None:
    names = manage.add(lab.folder, "hgx-h100", 3, light=True, gpus=4)
    first = await asyncio.to_thread(manage.start_host, lab.folder, lab.kubeconfig)
    api = connect(str(lab.kubeconfig))
    shown: dict[str, str] = {}

    async def look() -> None:
        items = (await api.list(NODES)).items
        shown.clear()
        shown.update({one["metadata"]["name"]: one["status"]["allocatable"].get(GPU_RESOURCE, "") for one in items})

    async def looks_like(wanted: dict[str, str]) -> None:
        async with asyncio.timeout(WAIT_S):
            while shown != wanted:
                await look()
                await asyncio.sleep(0.05)

    try:
        await looks_like(dict.fromkeys(names, "4"))
        os.kill(first, signal.SIGKILL)
        await until(lambda: not manage.host_running(lab.nodes))
        # Without a host, removing starts one: what is in the API server has to go too.
        await asyncio.to_thread(manage.remove, lab.folder, names[:1])
        assert manage.host_running(lab.nodes)
        await looks_like(dict.fromkeys(names[1:], "4"))
        assert await api.get(LEASES, names[0], namespace=objects.LEASE_NAMESPACE) is None
        assert manage.status(lab.folder)["host"] != first
        assert await asyncio.to_thread(manage.stop_host, lab.folder)
        assert list(manage.listing(lab.folder)) == names[1:]
    finally:
        await api.close()
