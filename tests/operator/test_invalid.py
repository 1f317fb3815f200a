"""What the validator says of a node as data: in conditions, Events and ``kgpu status``; what it says is to be done is
its agent's word everywhere.
"""

from __future__ import annotations

from typing import Any

from kgpu.formats import names
from kgpu.formats.validation_report import CheckTrouble, UnpassedCheck, UnpassedDevice, encode, report
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan

from .world import SETTINGS, condition_of, healthy_node, world

REMEDY = "kubectl delete node --all"
WORD = f'its agent says: "{REMEDY}"'
LOST = CheckTrouble(what="it has fallen off the bus (Xid 79)", expected="a GPU that answers", remedy=REMEDY)
MISSING = CheckTrouble(what="libcuda.so.1 is not there", expected="the driver's library", remedy=REMEDY)
DEVICE = UnpassedDevice(uuid="GPU-aa", gpu="GPU-aa", name="GPU 3", trouble=LOST)


def observed(*checks: UnpassedCheck) -> Any:
    node = healthy_node(validated=("False", "CudaFailed", "words for people; to do: nothing"))
    node["metadata"]["annotations"][names.VALIDATION_ANNOTATION] = encode(report(checks))
    return world(node, healthy_node("n2"))


def test_a_devices_trouble_is_told_with_its_agents_word() -> None:
    seen = observed(UnpassedCheck(check="cuda", status="failed", devices=(DEVICE,), more=2))
    made = plan(seen, SETTINGS)
    said = "cuda: GPU 3: it has fallen off the bus (Xid 79); expected a GPU that answers and 2 more"
    assert condition_of(made, "ValidatorReady")["message"] == f"1 of 2 nodes; node n1: {said}; to do: {WORD}"
    (event,) = [one for one in made.advice if one.subject == "Node/n1"]
    assert event.one_line() == f"Node/n1: node n1: {said}; to do: {WORD}"


def test_the_nodes_own_trouble_is_told_in_status_as_its_agents_word() -> None:
    (problem,) = overview(observed(UnpassedCheck(check="driver", status="failed", trouble=MISSING)), SETTINGS).problems
    assert problem.what == "driver: libcuda.so.1 is not there; expected the driver's library"
    assert problem.remedy == f'its agent says: "{REMEDY}"; kgpu doctor node n1 checks it'


def test_of_an_agent_of_another_version_the_condition_counts() -> None:
    seen = observed()
    (event,) = [one for one in plan(seen, SETTINGS).advice if one.subject == "Node/n1"]
    assert "words for people" in event.what
