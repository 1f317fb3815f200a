"""A lab of which only the objects and the hardware that a test needs are there; kubectl is played by a few lines."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL, GPUS_ANNOTATION
from kgpu.lab import common
from kgpu.lab.port import EMBEDDED, About, NodeHardware
from kgpu.lab.progress import QuietProgress
from tests.lab.test_scenarios import MemoryBackend

CONFIG = common.CONFIG_MAP.partition("/")[2]


def ground_config() -> dict[str, str]:
    """The device plugin's configurations as every lab has them."""
    found = next(one for one in common.objects() if one["metadata"]["name"] == CONFIG)
    return dict(found["data"])


class FakeLab:
    """``happened`` has what it was told to do, in order."""

    def __init__(self, kind: str = EMBEDDED, *, up: bool = True, hardware: tuple[NodeHardware, ...] = ()) -> None:
        self.progress = QuietProgress()
        self.kind = kind
        self.running = up
        self.happened: list[str] = []
        self.playing = MemoryBackend()
        self.playing.name = kind
        self.config: dict[str, str] | None = ground_config()
        self.node_labels: dict[str, str] = {}
        self.namespaces = ["default", "gpu-operator"]
        self.operations: dict[str, dict[str, Any]] = {}
        """By name; none: there is no operator, and no such kind."""
        self.reports: list[str] = []
        """What the node's agent says of its GPUs, one after the other; the last one stays."""
        self._hardware = hardware

    @property
    def about(self) -> About:
        return About(
            name="lab", kind=self.kind, folder=Path("/lab"), kubeconfig=Path("/lab/kubeconfig"), kubectl="kubectl",
            complete=self.running,
        )  # fmt: skip

    def up(self) -> None:
        self.happened.append("up")
        self.running = True

    def down(self) -> bool:
        self.happened.append("down")
        self.running = False
        return True

    def backend(self, name: str = "", *, vendor: str = "") -> Any:
        del name, vendor
        assert self.running
        self.happened.append("play")
        return self.playing

    def hardware(self) -> tuple[NodeHardware, ...]:
        return self._hardware

    def report(self) -> dict[str, Any]:
        return {"running": self.running}

    def kubectl_run(self, *words: str, stdin: str | None = None, timeout: float = 120) -> Any:
        del stdin, timeout
        match words:
            case ["get", "nodes", "-o", "json"]:
                said = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
                found: Any = {"items": [{"metadata": {"name": "gpu-node-1", "annotations": {GPUS_ANNOTATION: said}}}]}
            case ["get", "customresourcedefinitions", kind, *_]:
                return subprocess.CompletedProcess(words, 0, kind if self.operations else "", "")
            case ["get", "nodeoperations.kgpu.dev", *_]:
                found = {"items": [{"metadata": {"name": name}, **of} for name, of in self.operations.items()]}
            case ["delete", "nodeoperations.kgpu.dev", name, *_]:
                del self.operations[name]
                found = {}
            case ["get", "nodes", *_]:
                chosen = self.node_labels if DEVICE_PLUGIN_CONFIG_LABEL in self.node_labels else None
                found = _items({"gpu-node-1": chosen} if chosen else {})
            case ["get", "namespaces", *_]:
                found = _items(dict.fromkeys(self.namespaces))
            case ["get", "configmap", name, *_] if name == CONFIG:
                found = {"data": copy.deepcopy(self.config)}
            case ["delete", "namespace", name, *_]:
                self.namespaces.remove(name)
                found = {}
            case ["label", "node", "gpu-node-1", label]:
                del self.node_labels[label.removesuffix("-")]
                found = {}
            case ["apply", "-f", file] if file == str(common.OBJECTS):
                self.config = ground_config()
                found = {}
            case _:
                raise AssertionError(words)
        missing = self.config is None and words[:2] == ("get", "configmap")
        return subprocess.CompletedProcess(words, int(missing), json.dumps(found), "")


def _items(found: Mapping[str, Mapping[str, str] | None]) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": name, "labels": dict(of or {})}} for name, of in found.items()]}
