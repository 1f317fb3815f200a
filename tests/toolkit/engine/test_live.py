"""A real, supervised containerd: told by a signal, waited for, and given its config back when it isn't well."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from kgpu.base import signals
from kgpu.base.clock import SystemClock
from kgpu.base.errors import HostError
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine import run
from kgpu.toolkit.engine.model import Check, EngineContext
from kgpu.toolkit.engine.programs import EngineValidator, with_version
from kgpu.toolkit.engine.restart import SignalRestart, connects
from tests.host.engines.real_engine import containerd_binary

UNNEEDED = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"] + [
    f"io.containerd.snapshotter.v1.{name}" for name in ("overlayfs", "btrfs", "zfs", "devmapper", "blockfile", "erofs")
]


PATHS = MountedPaths.at("/")
# As under nohup.
DEAF = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
root = pytest.mark.skipif(os.geteuid() != 0, reason="containerd runs as root")


class Supervisor:
    """Starts the program again whenever it ends, as systemd does."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.starts = 0
        self._words, self._log = words, log
        self._ending = False
        self._process: subprocess.Popen | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._log.open("wb") as log:
            while not self._ending:
                self.starts += 1  # before it can answer anybody
                self._process = subprocess.Popen(signals.with_defaults(self._words), stdout=log, stderr=log)
                if self._ending:
                    self._process.terminate()
                self._process.wait()

    def end(self) -> None:
        self._ending = True
        if self._process is not None:
            self._process.terminate()
        self._thread.join()


class Clock(SystemClock):
    """The machine's clock, which a test can put forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def containerd(folder: Path) -> EnginePlace:
    """An engine with its config in the folder, not running yet."""
    binary = containerd_binary()
    config = folder / "config.toml"
    text = (
        f'version = 3\nroot = "{folder}/root"\nstate = "{folder}/state"\ndisabled_plugins = {UNNEEDED}\n'
        f'[grpc]\naddress = "{folder}/c.sock"\n[ttrpc]\naddress = "{folder}/t.sock"\n'
    ).replace("'", '"')
    config.write_text(text)
    place = EnginePlace(
        engine=Engine.CONTAINERD, flavour="containerd", config=str(config),
        drop_in=f"{folder}/conf.d/99-nvidia.toml", socket=f"{folder}/c.sock", binary=binary,
    )  # fmt: skip
    return await with_version(place, PATHS)


def context(folder: Path, check: Check | None = None, clock: SystemClock | None = None) -> EngineContext:
    return EngineContext(
        paths=PATHS, state_dir=folder / "kgpu", restarter=SignalRestart(PATHS), check=check,
        clock=clock or SystemClock(), validator=EngineValidator(PATHS, str(folder / "scratch")),
    )  # fmt: skip


@root
async def test_a_real_containerd_is_told_and_comes_back(tmp_path) -> None:
    place = await containerd(tmp_path)
    config = tmp_path / "config.toml"
    original = config.read_text()
    verdicts = iter(["no handler nvidia", *[""] * 9])

    clock = Clock()

    async def sick() -> str:
        clock.ahead += 1000.0  # the deadline is over
        return "no handler nvidia"

    async def late() -> str:
        return next(verdicts)

    supervisor = Supervisor([place.binary, "--config", place.config], tmp_path / "log")
    try:
        assert not await run._wait(place, context(tmp_path, clock=clock), None), (tmp_path / "log").read_text()
        outcome = await run.configure(place, EngineOffer(), context(tmp_path, late, clock))
        assert outcome.restarted
        assert supervisor.starts == 2
        assert not (await run.configure(place, EngineOffer(), context(tmp_path, clock=clock))).changed
        await run.unconfigure(place, context(tmp_path, clock=clock))
        assert supervisor.starts == 3
        assert config.read_text() == original
        with pytest.raises(HostError, match="no handler nvidia"):
            await run.configure(place, EngineOffer(), context(tmp_path, sick, clock))
        assert config.read_text() == original
        assert not await run._wait(place, context(tmp_path, clock=clock), None)
        assert await connects(place.socket) == ""
        assert supervisor.starts == 5
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("c", "."))) == [
            "c.sock",
            "config.toml",
        ]
    finally:
        supervisor.end()


@root
async def test_one_that_ignores_the_signal_reads_its_config_nevertheless(tmp_path) -> None:
    place = await containerd(tmp_path)
    supervisor = Supervisor([*DEAF, place.binary, "--config", place.config], tmp_path / "log")
    try:
        assert not await run._wait(place, context(tmp_path), None), (tmp_path / "log").read_text()
        outcome = await run.configure(place, EngineOffer(), context(tmp_path))
        assert (outcome.restarted, supervisor.starts) == (True, 2)
        assert any("ignores SIGHUP" in note and "SIGTERM" in note for note in outcome.notes)
        assert await connects(place.socket) == ""
    finally:
        supervisor.end()
