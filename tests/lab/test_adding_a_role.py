"""A role is a folder, two files and a row: what CONTRIBUTING asks for, done to a copy, runs on the embedded lab."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kgpu.formats import names
from tests.lab.copied import ROOT, Cluster, Copy, until

pytestmark = pytest.mark.timeout(300)

ROW: Final = """
    Operand(name="dummy", title="dummy", state="kgpu-dummy", daemon_set="kgpu-dummy", account="kgpu-dummy",
            condition="DummyReady", deploy="operator-validator", role="dummy", heading="played"),
"""
PLAN: Final = '''
"""Decides what the component says."""


def sentence(word: str) -> str:
    return f"told {word}"
'''
RUN: Final = '''
"""The component's loop: it does nothing but report its state."""

import asyncio
from dataclasses import dataclass

from kgpu.base.service import StateSink, ignore_state
from kgpu.dummy.plan import sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class DummyContext:
    word: str
    on_state: StateSink = ignore_state


async def run(ctx: DummyContext) -> None:
    ctx.on_state(True, sentence(ctx.word))
    await asyncio.Event().wait()
'''
AGENT: Final = '''
"""The role ``dummy``."""

from kgpu.agent.host import Role


async def _run(host, handle):
    from kgpu.dummy.run import DummyContext, run

    await run(DummyContext(word=host.options.env["DUMMY_WORD"], on_state=handle.report))


ROLE = Role("dummy", _run)
'''
OPERATOR: Final = '''
"""The operand of the role ``dummy``."""

from kgpu.formats.operands import BY_ROLE
from kgpu.operator.operand_spec import OperandPod, OperandSpec, Variable

SPEC = OperandSpec(
    operand=BY_ROLE["dummy"],
    enabled=lambda _policy, _settings: True,
    env=(Variable("DUMMY_WORD", "hello"),),
    pod=OperandPod(container="kgpu-dummy", volumes=("state",)),
)
'''
COMPONENT: Final = {"dummy/__init__.py": "", "dummy/plan.py": PLAN, "dummy/run.py": RUN}
FILES: Final = {**COMPONENT, "agent/roles/dummy.py": AGENT, "operator/operands/dummy.py": OPERATOR}


def add_the_row(copy: Copy) -> None:
    table = copy.root / "src/kgpu/formats/operands.py"
    before = table.read_text()
    after = before.replace("OPERANDS: Final = (\n", f"OPERANDS: Final = ({ROW}", 1)
    assert before != after
    table.write_text(after)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy.make(tmp_path_factory.mktemp("copy"), FILES)
    add_the_row(made)
    return made


@pytest.fixture(scope="module")
def cluster(copy: Copy, kubectl: str) -> Iterator[Cluster]:
    """An embedded lab that the copy has brought up."""
    folder = copy.root / "lab"
    try:
        up = copy.kgpu("lab", "up", "--operator", "--gpus", "1", "--dir", str(folder))
        assert up.returncode == 0, up.stdout + up.stderr
        yield Cluster(kubectl, folder / "kubeconfig")
    finally:
        copy.kgpu("lab", "down", "--dir", str(folder))


def test_the_agent_runs_it_and_the_operator_judges_it(copy: Copy, cluster: Cluster) -> None:
    def on_node() -> Any:
        (node,) = cluster.get("nodes")["items"]
        said = json.loads(node["metadata"].get("annotations", {}).get(names.ROLES_ANNOTATION, "{}"))
        return said.get("roles", {}).get("dummy")

    until(lambda: (on_node() or {}).get("reason"), "told hello")

    def condition() -> Any:
        policy = cluster.get("clusterpolicy", "cluster-policy")
        every = policy.get("status", {}).get("conditions", [])
        return [(one["status"], one["message"]) for one in every if one["type"] == "DummyReady"]

    until(condition, [("True", "1 of 1 nodes")])
    status = copy.kgpu("status", "--kubeconfig", str(cluster.kubeconfig))
    assert "played" in status.stdout, status.stdout + status.stderr


def test_the_chart_takes_it_from_the_row(copy: Copy) -> None:
    for name in ("charts", "docs"):
        shutil.copytree(ROOT / name, copy.root / name)
    shutil.copytree(ROOT / "tools", copy.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    written = copy.python("tools/chart.py")
    assert written.returncode == 0, written.stderr
    agents = json.loads((copy.root / "charts/kgpu/agents.json").read_text())
    assert "kgpu-dummy" in agents["accounts"]
    assert "kgpu-dummy" in agents["daemonSets"]


RENDER: Final = """
from kgpu.operator.model import NodeLayout, ObservedCluster, OperatorSettings, Policy
from kgpu.operator.rendering.render import render
from kgpu.formats.crd.decode import clusterpolicy
spec = clusterpolicy({"metadata": {"name": "p"}, "spec": {"driver": {"enabled": False}}}).spec
policy = Policy(name="p", uid="u", generation=1, created="", spec=spec)
settings = OperatorSettings(namespace="gpu-operator", image="kgpu:1", layout=NodeLayout.OPERANDS)
for one in render(policy, settings, ObservedCluster()).objects:
    print(one["kind"], one["metadata"]["name"])
"""


def test_where_operands_have_pods_of_their_own_it_has_one(copy: Copy) -> None:
    made = copy.python("-c", RENDER).stdout.splitlines()
    kinds = {line.partition(" ")[0] for line in made if line.endswith(" kgpu-dummy")}
    assert kinds == {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
