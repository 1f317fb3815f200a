"""Who has device nodes open, on trees of ``/proc`` and on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.host import device_holders
from kgpu.host.device_holders import DeviceHolder, device_key, holders, key_of, programs
from tests.child import child

UID = "5f1e2c9a-7d34-4b60-8c15-9e2a6b7f0d43"
CID = "ab" * 32
CGROUP = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CID}.scope\n"


class Proc:
    """A ``/proc`` with processes of our own making; a node is a plain file."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.dev = folder / "dev"
        self.proc.mkdir()
        self.dev.mkdir()

    def node(self, name: str) -> Path:
        (self.dev / name).touch()
        return self.dev / name

    def process(self, pid: int, *files: Path, comm: str = "python3", cgroup: str = "0::/init.scope\n") -> Path:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cgroup").write_text(cgroup)
        for number, path in enumerate(files):
            (folder / "fd" / str(number)).symlink_to(path)
        return folder

    def found(self, *names: str, user_of: Path | None = None) -> tuple[DeviceHolder, ...]:
        nodes = {key: name for name in names if (key := key_of(self.dev / name))}
        return holders(nodes, proc=self.proc, user_of=key_of(user_of) if user_of else None)


@pytest.fixture
def tree(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_who_has_it_open_is_named_with_pod_and_container(tree: Proc) -> None:
    gpu, other = tree.node("nvidia0"), tree.node("nvidia1")
    tree.process(30, other, gpu, comm="train", cgroup=CGROUP)
    tree.process(4, gpu, gpu)
    tree.process(50, other, tree.node("nvidiactl"))
    first, second = tree.found("nvidia0")
    assert first == DeviceHolder(pid=4, program="python3", nodes=frozenset({"nvidia0"}))
    assert second == DeviceHolder(pid=30, program="train", nodes=frozenset({"nvidia0"}), pod=UID, container=CID)
    assert (str(first), str(second)) == ("python3 (pid 4)", f"train (pid 30) of pod {UID}")
    assert [holder.nodes for holder in tree.found("nvidia0", "nvidia1")] == [
        {"nvidia0"}, {"nvidia0", "nvidia1"}, {"nvidia1"},
    ]  # fmt: skip


def test_a_copy_of_a_node_is_the_node(monkeypatch: pytest.MonkeyPatch, tree: Proc) -> None:
    """A container has nodes of its own with the same numbers, ``/dev/null`` here."""
    (tree.dev / "nvidia-copy").symlink_to("/dev/null")
    folder = tree.process(7)
    (folder / "fd" / "3").symlink_to(tree.dev / "nvidia-copy")
    assert [holder.pid for holder in holders({device_key(1, 3): "null"}, proc=tree.proc)] == [7]
    assert holders({device_key(1, 5): "zero"}, proc=tree.proc) == ()


def test_only_links_with_a_nodes_name_are_asked_about(monkeypatch: pytest.MonkeyPatch, tree: Proc) -> None:
    """Asking about one on a dead file server would never return."""
    tree.process(7, Path("/srv/dead/data"), tree.node("nvidia0"))
    asked: list[str] = []
    real = os.stat
    monkeypatch.setattr(device_holders.os, "stat", lambda path: (asked.append(os.readlink(path)), real(path))[1])
    nodes = {device_key(1, 3): "null"}
    holders(nodes, proc=tree.proc)
    assert asked == [str(tree.dev / "nvidia0")]


def test_one_machines_processes_alone(tree: Proc) -> None:
    gpu, state, elsewhere = tree.node("nvidia0"), tree.node("state"), tree.node("state-2")
    tree.process(1, gpu, state)
    tree.process(2, gpu, elsewhere)
    tree.process(3, gpu)
    tree.process(4, state)
    assert [holder.pid for holder in tree.found("nvidia0", user_of=state)] == [1]


def test_a_simulated_containers_mark_is_told(tree: Proc) -> None:
    folder = tree.process(1, tree.node("nvidia0"))
    (folder / "environ").write_text(f"A=1\0KGPU_LAB_CONTAINER={CID}\0B=2")
    (holder,) = tree.found("nvidia0")
    assert (holder.container, str(holder)) == (CID, f"python3 (pid 1) of container {CID}")


def test_hostile_names_are_made_printable(tree: Proc) -> None:
    tree.process(1, tree.node("nvidia0"), comm="a\x1b[31m\nb" + "c" * 100)
    (holder,) = tree.found("nvidia0")
    assert holder.program.isprintable()
    assert len(holder.program) <= 32


def test_processes_that_end_meanwhile_and_other_folders_are_left_out(tree: Proc) -> None:
    gpu = tree.node("nvidia0")
    (tree.proc / "5").mkdir()
    (tree.proc / "self").mkdir()
    tree.process(6, Path("/gone/nvidia0"), gpu)
    assert [holder.pid for holder in tree.found("nvidia0")] == [6]


def test_what_cant_be_read_is_never_taken_for_nothing(monkeypatch: pytest.MonkeyPatch, tree: Proc) -> None:
    tree.process(1)
    real = os.listdir

    def refused(path: str | Path) -> list[str]:
        if str(path).endswith("/fd"):
            raise PermissionError
        return real(path)

    monkeypatch.setattr(device_holders.os, "listdir", refused)
    with pytest.raises(HostError, match="what process 1 has open can't be read"):
        tree.found("nvidia0")
    assert tree.found("nvidia0", user_of=tree.node("state")) == ()
    with pytest.raises(HostError, match="can't be read"):
        holders({}, proc=tree.proc / "none")


def test_a_real_process(tmp_path: Path) -> None:
    """Opened without access, as nodes without a driver are."""
    (tmp_path / "nvidia7").touch()
    script = "import os,sys; os.open(sys.argv[1], os.O_PATH); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path / "nvidia7")]
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        key = key_of(tmp_path / "nvidia7")
        assert key is not None
        assert [holder.pid for holder in holders({key: "nvidia7"})] == [process.pid]
        assert Path(f"/proc/{process.pid}/comm").read_text().strip() in programs()


def test_gpus_are_known_by_their_minors_or_on_a_simulated_machine_by_its_files(
    tree: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(device_holders, "holders", lambda nodes, **more: asked.append((nodes, more)))
    state, gpu = tree.dev.parent / "state", tree.node("nvidia3")
    state.touch()
    device_holders.gpu_holders({3: "GPU-3"}, "/run/nvidia/driver")
    device_holders.gpu_holders({3: "GPU-3", 4: "GPU-4"}, str(tree.dev.parent), str(state))
    assert asked == [
        ({device_key(195, 3): "GPU-3"}, {"user_of": None}),
        ({key_of(gpu): "GPU-3"}, {"user_of": key_of(state)}),
    ]
