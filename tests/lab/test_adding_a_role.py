"""A role is two files and a row: what CONTRIBUTING asks for, done literally to a copy, runs on the embedded lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kgpu.formats import names
from tests.lab.copied import Cluster, Copy, until

pytestmark = pytest.mark.timeout(300)

ROW: Final = """
    Operand(name="dummy", title="dummy", state="kgpu-dummy", daemon_set="kgpu-dummy", account="kgpu-dummy",
            condition="DummyReady", deploy="operator-validator", role="dummy", heading="played"),
"""
AGENT: Final = '''
"""The role ``dummy``: a component that does nothing but run."""

import asyncio

from kgpu.agent.host import Role


async def _run(host, handle):
    handle.running(f"told {host.options.env['DUMMY_WORD']}")
    await asyncio.Event().wait()


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
FILES: Final = {"agent/roles/dummy.py": AGENT, "operator/operands/dummy.py": OPERATOR}


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
