"""What ``kgpu logs`` and ``kgpu restart`` ask for, against the rights that their page hands out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kgpu.cli.main import main
from tests.cli.operand_cluster import OperandCluster

FILE = Path(__file__).resolve().parents[2] / "docs/how-to/operand-rights.yaml"
GRANTED = {
    obj["metadata"]["name"]: {(verb, what) for rule in obj["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    for obj in yaml.safe_load_all(FILE.read_text())
    if obj["kind"] == "Role"
}  # fmt: skip
FINDING = ("list", "clusterpolicies")
"""Refused, it is the usual namespace."""


class WithLogs(OperandCluster):
    """Notes that logs were asked for."""

    async def pod_log(self, namespace: str, pod: str, query: dict[str, str], **how: int) -> bytes:
        self.calls.append(("get", "pods/log", pod))
        return await super().pod_log(namespace, pod, query, **how)


def asked(monkeypatch: pytest.MonkeyPatch, *commands: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for words in commands:
        cluster = WithLogs()
        cluster.refuse[FINDING] = 403
        monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, one=cluster, **_kwargs: one)
        assert main(["kgpu", *words.split()]) == 0
        found |= {(verb, plural) for verb, plural, _ in cluster.calls} - {FINDING}
    return found


def test_to_read_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, "logs device-plugin", "logs device-plugin --node a -f") == GRANTED["kgpu-logs"]


def test_to_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = asked(monkeypatch, "restart device-plugin --no-wait", "restart device-plugin --node a")
    assert wanted | {("get", "deployments"), ("patch", "deployments")} == GRANTED["kgpu-restart"]
