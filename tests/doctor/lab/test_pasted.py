"""What the doctor proposes is pasted into a shell, and what waited runs: for every kind of owner, and for taints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.doctor.model import Finding
from kgpu.formats import names
from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Break, Ground, first_rightly, healthy, until
from tests.doctor.lab.labs import FIRST, brought_up
from tests.doctor.lab.things import SPACE, deployment, job, make, pod, taint

WRONG = {"nodeSelector": {names.LABEL_GPU_PRODUCT: "H100-80GB-HBM3"}}


def stateful_set(name: str) -> Object:
    made = deployment(name, 1, **WRONG)
    return {**made, "kind": "StatefulSet", "spec": {**made["spec"], "serviceName": name}}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    yield from brought_up("pasted", tmp_path_factory.mktemp("pasted"))


def typed(finding: Finding) -> list[str]:
    """The commands among what is to be done; the lines above them are for people."""
    found = [step for step in finding.remedy if step.startswith("kubectl ")]
    assert found, finding.remedy
    return found


def paste(ground: Ground, *steps: str) -> None:
    """As a user would, in a shell with kubectl."""
    path = f"{Path(ground.lab.kubectl_program).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "KUBECONFIG": str(ground.lab.kubeconfig)}
    for step in steps:
        done = subprocess.run(["bash", "-c", step], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{step}\n{done.stderr}"


def placed(ground: Ground, name: str) -> bool:
    """Whether a pod of that name or owner has a node, and none of them waits."""
    found = ground.wait(ground.api.list(ground.resource("Pod"), namespace=SPACE)).items
    mine = [one for one in found if one["metadata"]["name"].startswith(name)]
    return bool(mine) and all(one["spec"].get("nodeName") for one in mine)


@pytest.mark.parametrize(
    "made", [deployment("serve", 1, **WRONG), job("train", **WRONG), stateful_set("cache"), pod("bare", **WRONG)],
    ids=lambda made: made["kind"],
)  # fmt: skip
def test_a_wrong_selector_is_mended_by_what_is_pasted(ground: Ground, made: Object) -> None:
    name = made["metadata"]["name"]
    wanted = Break(what="a product that no node has", first="SCH-08", names=name, steps=(make(made),))
    undo = wanted.steps[0].do(ground)
    try:
        first = first_rightly(ground, wanted).findings[0]
        assert f"then it fits node {FIRST}" in first.remedy[0]
        paste(ground, *typed(first))
        until(lambda: placed(ground, name), f"{name} has a node")
    finally:
        undo()
        healthy(ground)


def test_two_taints_of_one_node_are_tolerated_by_one_command(ground: Ground) -> None:
    rows = [{"key": key, "value": "yes", "effect": "NoSchedule"} for key in ("gpu", "team")]
    steps = (taint(FIRST, *rows), make(pod("bare", gpus=4)))
    wanted = Break(what="two taints of one node", first="TNT-01", names="bare", steps=steps)
    undos = [step.do(ground) for step in steps]
    try:
        report = first_rightly(ground, wanted)
        assert [one.id for one in report.real].count("TNT-01") == 1
        paste(ground, typed(report.findings[0])[0])
        until(lambda: placed(ground, "bare"), "the pod has a node")
    finally:
        for undo in reversed(undos):
            undo()
        healthy(ground)
