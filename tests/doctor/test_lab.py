"""One embedded lab is broken in several ways, one after the other; the doctor's first finding names each, and health."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.cli.doctor import snapshot_of
from kgpu.doctor.model import Level, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build

pytestmark = pytest.mark.timeout(180)
WAIT = 20.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A node of eight simulated H100s."""
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    made = EmbeddedLab("doctor", tmp_path_factory.mktemp("doctor") / "lab", QuietProgress(), first=FirstNode())
    try:
        made.up()
        yield made
    finally:
        made.down()


def pod(**spec: Any) -> dict[str, Any]:
    gpus = spec.pop("gpus", {"nvidia.com/gpu": 1})
    container = {"name": "main", "image": "nvidia/cuda:12.8.0-base-ubuntu24.04", "command": ["sleep", "600"],
                 "resources": {"limits": gpus}, **spec.pop("container", {})}  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "broken", "namespace": "default"},
        "spec": {"containers": [container], **spec},
    }  # fmt: skip


CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a product that no node has": ("SCH-08", [pod(nodeSelector={"nvidia.com/gpu.product": "A100-SXM4-80GB"})]),
    "more GPUs than a node has": ("SCH-00", [pod(gpus={"nvidia.com/gpu": 9})]),
    "a slice where nothing is in MIG mode": ("SCH-00", [pod(gpus={"nvidia.com/mig-1g.10gb": 1})]),
    "another vendor's GPU": ("SCH-00", [pod(gpus={"amd.com/gpu": 1})]),
    "a claim that is not there": (
        "", [pod(gpus={}, resourceClaims=[{"name": "gpu", "resourceClaimName": "no-such-claim"}])],
    ),
}  # fmt: skip
"""By what is wrong: the id that must come first ("" where several rows fit: then the pod must be named), and what to make."""


def look(lab: EmbeddedLab) -> Report:
    return diagnose(asyncio.run(snapshot_of("", str(lab.kubeconfig))), strict=True)


def problems(report: Report) -> list[str]:
    return [one.id for one in report.findings if one.level is not Level.NOTE]


def test_a_healthy_lab_has_no_finding(lab: EmbeddedLab) -> None:
    report = look(lab)
    assert problems(report) == [], as_text(report)


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding_names_the_cause(lab: EmbeddedLab, name: str) -> None:
    wanted, objects = CASES[name]
    try:
        for one in objects:
            done = lab.kubectl_run("apply", "-f", "-", stdin=json.dumps(one))
            assert done.returncode == 0, done.stderr
        end = time.monotonic() + WAIT
        while True:
            report = look(lab)
            first = report.findings[0] if report.findings else None
            if first is not None and (first.id == wanted or (not wanted and "default/broken" in first.cause)):
                break
            assert time.monotonic() < end, as_text(report)
            time.sleep(0.5)
        assert first.remedy
    finally:
        for one in objects:
            lab.kubectl_run("delete", one["kind"].lower(), one["metadata"]["name"], "--now", "--ignore-not-found")
