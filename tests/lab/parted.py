"""An embedded lab under the operator whose first node's GPUs are parted by a label: what its tests ask and do."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kgpu.formats import mig_request
from kgpu.formats.mig_request import MigReport
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.mig.manager.kind import LayoutLabel
from tests import on_real
from tests.lab import asking

WAIT_S = 180.0


class PartedLab:
    """``label`` says how the GPUs are to be parted, ``domain`` begins the names of their resources."""

    def __init__(self, lab: EmbeddedLab, label: LayoutLabel, domain: str) -> None:
        self.lab = lab
        self.label = label
        self.domain = domain

    def until(self, condition: Any, what: str) -> Any:
        """The first true value of a condition."""
        found = on_real.looked_for(condition, WAIT_S)
        if found is None:
            phases = [one.get("status", {}).get("message") for one in self.operations()]
            said = f"{self.report()}; {self.offered()}; {phases}"
            pytest.fail(f"not within {WAIT_S:g} s: {what}; {said}")
        return found

    def get(self, *words: str) -> Any:
        return asking.get(self.lab.folder / "kubeconfig", *words)

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return run_kubectl(self.lab, *words, stdin=stdin) if stdin else run_kubectl(self.lab, *words)

    def apply(self, manifest: Mapping[str, Any]) -> None:
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(manifest))

    # What is to be seen

    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("node", FIRST_NODE)
        return found

    def policy(self) -> str:
        status = self.get("clusterpolicy", "cluster-policy").get("status") or {}
        return str(status.get("state"))

    def operations(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("nodeoperations")["items"]
        return found

    def report(self) -> MigReport | None:
        return mig_request.read_report(self.node()["metadata"].get("annotations") or {}, self.label.report)

    def offered(self) -> dict[str, int]:
        """What pods can have of the node's GPUs."""
        return self.counted(self.node()["status"]["allocatable"])

    def counted(self, allocatable: dict[str, str]) -> dict[str, int]:
        """The GPUs and parts among a node's resources."""
        counts = {name: int(count) for name, count in allocatable.items() if name.startswith(f"{self.domain}/")}
        return {name: count for name, count in counts.items() if count}  # the kubelet keeps former resources at 0

    def is_so(self, config: str, state: str) -> bool:
        """Whether label and report say this state of this config."""
        told = self.report()
        value = self.node()["metadata"]["labels"].get(self.label.state)
        shown = self.label.failed if state == "failed" else state
        return told is not None and (told.config, told.state, value) == (config, state, shown)

    def is_said(self, words: str) -> bool:
        """Whether the report's message has these words."""
        told = self.report()
        return told is not None and words in told.message

    def pods(self, name: str) -> set[str]:
        """The uids of the pods of this app that run."""
        found = self.get("pods", "--selector", f"app={name}")["items"]
        return {pod["metadata"]["uid"] for pod in found if pod["status"].get("phase") == "Running"}

    # What people do

    def ask(self, config: str) -> None:
        self.kubectl("label", "node", FIRST_NODE, "--overwrite", f"{self.label.key}={config}")

    def cut(self, config: str, counts: dict[str, int]) -> float:
        """Ask for a config and wait until pods can have its parts; the seconds that this took."""
        self.ask(config)
        began = time.monotonic()
        self.until(lambda: self.offered() == counts, f"{config}: {counts}")
        took = time.monotonic() - began
        self.until(lambda: self.is_so(config, "success"), f"{config} is told")
        return took

    def deploy(self, name: str, resource: str, command: str, *, image: str = "busybox:1", replicas: int = 1) -> None:
        """A Deployment whose pods have one device of a resource each."""
        container = {
            "name": "main", "image": image, "command": ["sh", "-c", command], "resources": {"limits": {resource: 1}},
        }  # fmt: skip
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }  # fmt: skip
        self.apply({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": labels}, "template": template, "replicas": replicas},
        })  # fmt: skip

    def forbid_evictions(self, name: str, app: str) -> None:
        """A budget that lets no pod of an app go."""
        self.apply({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}},
        })  # fmt: skip

    def remove(self, *deployments: str) -> None:
        """These are gone with their pods."""
        self.kubectl("delete", "deployment", *deployments, "--wait")
        for name in deployments:
            self.until(lambda name=name: not self.pods(name), f"the pods of {name} are gone")  # type: ignore[misc]
