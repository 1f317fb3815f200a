"""A host with an engine's config in a temporary folder, and what a test wants to know of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kgpu.base.clock import VirtualClock
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace, Files
from kgpu.host.engines.paths import MountedPaths
from kgpu.toolkit.engine import run
from kgpu.toolkit.engine.model import EngineContext, EngineOutcome
from kgpu.toolkit.engine.restart import NoRestart

CONFIG = b"""\
# hello
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


class Nobody:
    """A validator that can't be asked."""

    async def problem(self, place: EnginePlace, files: Files) -> str:
        del place, files
        return ""


class NudgedClock(VirtualClock):
    """Time passes as fast as it is waited for."""

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


@dataclass
class Host:
    root: Path
    place: EnginePlace
    state_dir: Path | None = None

    @property
    def paths(self) -> MountedPaths:
        return MountedPaths.at(self.root)

    def local(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def context(self, engine=None, **more) -> EngineContext:
        return EngineContext(
            paths=self.paths,
            state_dir=self.state_dir or self.root / "var/lib/kgpu",
            restarter=engine or NoRestart(),
            validator=engine or Nobody(),
            clock=NudgedClock(),
            deadline=5.0,
            **more,
        )

    def configure(self, wanted: EngineOffer | None = None) -> EngineOutcome:
        return asyncio.run(run.configure(self.place, wanted or EngineOffer(), self.context()))

    def unconfigure(self) -> EngineOutcome:
        return asyncio.run(run.unconfigure(self.place, self.context()))

    def tree(self, *folders: str) -> dict[str, bytes | None]:
        """Every file (and folder: None) below the folders, by path."""
        found: dict[str, bytes | None] = {}
        for folder in folders or ("etc",):
            for path in sorted((self.root / folder).rglob("*")):
                found[str(path.relative_to(self.root))] = None if path.is_dir() else path.read_bytes()
        return found


def containerd_host(root: Path, config: bytes | None = CONFIG, **more) -> Host:
    (root / "etc/containerd").mkdir(parents=True)
    if config is not None:
        (root / "etc/containerd/config.toml").write_bytes(config)
    place = EnginePlace(
        engine=Engine.CONTAINERD, flavour="containerd", config="/etc/containerd/config.toml",
        drop_in="/etc/containerd/conf.d/99-nvidia.toml", socket="/run/c.sock", service="containerd",
        **{"version": (2, 1, 4), **more},
    )  # fmt: skip
    return Host(root, place)


def crio_host(root: Path) -> Host:
    (root / "etc/crio/crio.conf.d").mkdir(parents=True)
    (root / "etc/crio/crio.conf.d/10-crio.conf").write_bytes(
        b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/libexec/crio/crun"\nmonitor_path = "/usr/libexec/crio/conmon"\n'
    )
    place = EnginePlace(
        engine=Engine.CRIO, flavour="crio", config="/etc/crio/crio.conf",
        drop_in="/etc/crio/crio.conf.d/99-nvidia.toml", socket="/run/c.sock", service="crio",
    )  # fmt: skip
    return Host(root, place)


def docker_host(root: Path) -> Host:
    (root / "etc/docker").mkdir(parents=True)
    (root / "etc/docker/daemon.json").write_bytes(
        b'{\n  "log-driver": "json-file",\n  "features": {"buildkit": true}\n}\n'
    )
    return Host(
        root,
        EnginePlace(engine=Engine.DOCKER, flavour="docker", config="/etc/docker/daemon.json", socket="/run/c.sock"),
    )


def k3s_host(root: Path) -> Host:
    folder = root / "var/lib/rancher/k3s/agent/etc/containerd"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_bytes(b"version = 3\n" + CONFIG.split(b"version = 3\n")[1])
    place = EnginePlace(
        engine=Engine.CONTAINERD, flavour="k3s", config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        template="/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl", socket="/run/c.sock",
    )  # fmt: skip
    return Host(root, place)


HOSTS = {"containerd": containerd_host, "crio": crio_host, "docker": docker_host, "k3s": k3s_host}
