"""Killed at any step: the config always loads, and the next run finishes what was begun or gives back the original."""

from __future__ import annotations

import os
import shutil
import tomllib

import pytest

from kgpu.host.engines import rules
from kgpu.host.engines.model import EngineOffer, FileChange, RuntimeHandler
from kgpu.toolkit.engine.files import apply
from tests.toolkit.engine.killing import KILLED, run_and_kill
from tests.toolkit.engine.support import HOSTS, Host, containerd_host

FOLDERS = {"k3s": ("var/lib/rancher",)}
OTHER = EngineOffer(handlers=(RuntimeHandler("nvidia"), RuntimeHandler("other", "/opt/crun")), default="nvidia")
MOST_STEPS = 200


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    """A killed process leaves what it wrote in the kernel's cache; only a power cut would need the disk."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


@pytest.mark.parametrize(
    ("kind", "work"),
    [(kind, work) for kind in HOSTS for work in ("configure", "unconfigure")]
    + [("containerd", "again"), ("crio", "again")],
)
def test_killed_at_every_step(kind, work, tmp_path) -> None:
    folders = FOLDERS.get(kind, ("etc",))
    model = HOSTS[kind](tmp_path / "model")
    original = model.tree(*folders)
    if work != "configure":
        model.configure()
    before = model.tree(*folders)
    actions = {
        "configure": Host.configure,
        "again": lambda host: host.configure(OTHER),
        "unconfigure": Host.unconfigure,
    }
    done = Host(tmp_path / "done", model.place)
    shutil.copytree(model.root, done.root)
    actions[work](done)
    after = done.tree(*folders)
    for step in range(1, MOST_STEPS):
        host = Host(tmp_path / f"step{step}", model.place)
        shutil.copytree(model.root, host.root)
        if not run_and_kill(lambda host=host: actions[work](host), step):
            assert host.tree(*folders) == after
            break
        now = host.tree(*folders)
        for path, content in now.items():
            if os.path.basename(path).startswith("."):
                assert content == after.get(path.replace("/.", "/").removesuffix(".kgpu"))
                continue
            assert content in {before.get(path), after.get(path)}, path
        state = rules.state(host.place, rules.gather(host.place, host.paths))  # it loads
        assert "nvidia" not in state.handlers or state.handlers.keys() & {"nvidia-cdi", "other"} or kind == "k3s"
        again = Host(tmp_path / f"again{step}", model.place)
        shutil.copytree(host.root, again.root)
        actions[work](again)
        assert again.tree(*folders) == after
        host.unconfigure()
        assert host.tree(*folders) == original
        shutil.rmtree(host.root)
        shutil.rmtree(again.root)
    else:
        pytest.fail(f"more than {MOST_STEPS} steps")
    assert step > 5


def test_killed_at_every_byte_of_a_file(tmp_path) -> None:
    host = containerd_host(tmp_path)
    path = host.local(host.place.config)
    old = path.read_bytes()
    new = old + b"# more\n"
    change = FileChange(host.place.config, old, new, "test")

    def stop_at(count: int) -> None:
        real = os.write

        def write(fd: int, data) -> int:
            real(fd, bytes(data)[:count])
            os._exit(KILLED)

        os.write = write
        apply(change, host.paths)

    for count in range(len(new) + 1):
        child = os.fork()
        if not child:
            stop_at(count)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == KILLED
        assert path.read_bytes() == old
        assert [entry.name for entry in path.parent.iterdir()] == ["config.toml"]
    apply(change, host.paths)
    assert path.read_bytes() == new
    assert tomllib.loads(new.decode())
