"""A real, supervised containerd: told by a signal, waited for, and given its config back when it isn't well."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from host.engines.real_engine import containerd_binary

from kgpu.base import signals
from kgpu.base.clock import SystemClock
from kgpu.base.errors import HostError
from kgpu.host.engines.model import Engine, Place, Wanted
from kgpu.host.engines.paths import HostPaths
from kgpu.toolkit.engine import run
from kgpu.toolkit.engine.model import EngineContext
from kgpu.toolkit.engine.programs import EngineValidator, with_version
from kgpu.toolkit.engine.restart import SignalRestart, connects

UNNEEDED = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"] + [
    f"io.containerd.snapshotter.v1.{name}" for name in ("overlayfs", "btrfs", "zfs", "devmapper", "blockfile", "erofs")
]


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
                self._process = subprocess.Popen(signals.with_defaults(self._words), stdout=log, stderr=log)
                self.starts += 1
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


@pytest.mark.skipif(os.geteuid() != 0, reason="containerd runs as root")
async def test_a_real_containerd_is_told_and_comes_back(tmp_path) -> None:
    binary = containerd_binary()
    config = tmp_path / "config.toml"
    original = (
        f'version = 3\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/state"\ndisabled_plugins = {UNNEEDED}\n'
        f'[grpc]\naddress = "{tmp_path}/c.sock"\n[ttrpc]\naddress = "{tmp_path}/t.sock"\n'
    ).replace("'", '"')
    config.write_text(original)
    paths = HostPaths.at("/")
    place = Place(
        engine=Engine.CONTAINERD, flavour="containerd", config=str(config),
        drop_in=f"{tmp_path}/conf.d/99-nvidia.toml", socket=f"{tmp_path}/c.sock", binary=binary,
    )  # fmt: skip
    place = await with_version(place, paths)
    verdicts = iter(["no handler nvidia", *[""] * 9])

    clock = Clock()

    async def sick() -> str:
        clock.ahead += 1000.0  # the deadline is over
        return "no handler nvidia"

    def context(check=None) -> EngineContext:
        return EngineContext(
            paths=paths, state_dir=tmp_path / "kgpu", restarter=SignalRestart(paths), check=check, clock=clock,
            validator=EngineValidator(paths, str(tmp_path / "scratch")),
        )  # fmt: skip

    async def late() -> str:
        return next(verdicts)

    supervisor = Supervisor([binary, "--config", str(config)], tmp_path / "log")
    try:
        assert not await run._wait(place, context(), None), (tmp_path / "log").read_text()
        outcome = await run.configure(place, Wanted(), context(late))
        assert outcome.restarted
        assert supervisor.starts == 2
        assert not (await run.configure(place, Wanted(), context())).changed
        await run.unconfigure(place, context())
        assert supervisor.starts == 3
        assert config.read_text() == original
        with pytest.raises(HostError, match="no handler nvidia"):
            await run.configure(place, Wanted(), context(sick))
        assert config.read_text() == original
        assert not await run._wait(place, context(), None)
        assert await connects(place.socket) == ""
        assert supervisor.starts == 5
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("c", "."))) == [
            "c.sock",
            "config.toml",
        ]
    finally:
        supervisor.end()
