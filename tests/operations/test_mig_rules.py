"""A MigChange on the embedded API server: what the kind's rules refuse, and the engine's words under its field managers."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats import mig_request, names
from kgpu.formats.crd.nodeoperation import NodeOperationSpec
from kgpu.formats.node_order import HolderPod, answer, encode, read_order
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, KubeRefusedError, Patch
from kgpu.operations.requests import make_operation
from tests.lab.embedded.support import Whole
from tests.operations.sim_mig import layout, spec
from tests.operations.test_on_the_embedded_api import disruption_budget, embedded, engine, node, replicas

__all__ = ["embedded"]
MIG = spec()["mig"]


async def make(found: Whole, **given: Any) -> None:
    whole = {"nodeName": "n1", **spec(), **given}
    body = {"metadata": {"name": "m"}, "spec": {key: value for key, value in whole.items() if value is not None}}
    await found.api.create(NODE_OPERATIONS, body)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mig": None}, "set its label nvidia.com/mig.config instead"),
        ({"gpus": None}, "set its label nvidia.com/mig.config instead"),
        ({"gpus": []}, "set its label nvidia.com/mig.config instead"),
        ({"gpus": ["GPU-2"]}, "mig.layouts has to say for each GPU in gpus"),
        ({"gpus": ["GPU-1", "GPU-2"]}, "mig.layouts has to say for each GPU in gpus"),
        ({"type": "GpuReset"}, "mig is for a MigChange alone"),
        ({"type": "Maintenance"}, "mig is for a MigChange alone"),
        ({"mig": {**MIG, "layouts": []}}, "spec.mig.layouts"),
        ({"mig": {**MIG, "request": ""}}, "spec.mig.request"),
        ({"mig": {**MIG, "request": "x" * 65}}, "spec.mig.request"),
        ({"mig": {**MIG, "config": "x" * 101}}, "spec.mig.config"),
        ({"mig": {**MIG, "drain": "Node"}}, "spec.mig.drain"),
        ({"gpus": [f"GPU-{number}" for number in range(17)]}, "spec.gpus"),
        ({"durationSeconds": 5}, "durationSeconds is for a Maintenance alone"),
        ({"resume": True}, "only a Maintenance or a Replace is resumed"),
        ({"drain": {"waitFor": {"podSelector": "a=b"}}}, "drain.waitFor is for operations on whole nodes"),
    ],
)
async def test_what_can_not_be_meant_is_refused(embedded: Whole, given: dict[str, Any], why: str) -> None:
    with pytest.raises(KubeRefusedError) as refused:
        await make(embedded, **given)
    assert refused.value.code == 422
    assert why in refused.value.what


async def test_the_layouts_can_not_be_changed(embedded: Whole) -> None:
    await make(embedded)
    for change in ({"release": True}, {"layouts": [{"gpu": "GPU-1", "enabled": False}]}, {"drain": "none"}):
        with pytest.raises(KubeRefusedError, match="mig is immutable"):
            await embedded.api.patch(NODE_OPERATIONS, "m", {"spec": {"mig": change}}, kind=Patch.MERGE)
    await embedded.api.patch(NODE_OPERATIONS, "m", {"spec": {"cancel": True}})


async def test_nobody_makes_one_by_hand(embedded: Whole) -> None:
    wanted = NodeOperationSpec(node_name="n1", type="MigChange")
    with pytest.raises(ConfigError, match="can't be made by hand") as refused:
        await make_operation(embedded.api, "n1", wanted)
    assert "kubectl label node n1 nvidia.com/mig.config=CONFIG" in refused.value.remedy


async def _annotate(found: Whole, text: str | None) -> None:
    """As the agent writes it."""
    change = {"metadata": {"annotations": {names.MIG_REQUEST_ANNOTATION: text}}}
    await found.api.patch(NODES, "n1", change, kind=Patch.MERGE)


def _told(found: Whole) -> mig_request.MigProgress | None:
    return mig_request.read_progress(node(found)["metadata"].get("annotations") or {})


async def test_a_request_is_made_and_told(embedded: Whole) -> None:
    """The node has no boot ID, so the operation is refused, and the word says so; what nobody can read goes."""
    wish = mig_request.request(key="r1", config="all-1g.10gb", layouts=(layout(),))
    async with engine(embedded):
        await _annotate(embedded, mig_request.encode(wish))
        await embedded.until(lambda: (word := _told(embedded)) is not None and word.phase == "Failed", "the word")
        word = _told(embedded)
        assert word is not None
        assert (word.id, word.reason) == ("r1", "Refused")
        assert "has no boot ID" in word.message
        made = embedded.get(NODE_OPERATIONS, word.operation)
        assert made is not None
        assert made["spec"]["mig"]["layouts"] == [{"gpu": "GPU-1", "enabled": True, "devices": {"1g.10gb": 7}}]
        managers = {row["manager"] for row in node(embedded)["metadata"]["managedFields"]}
        assert names.MIG_OPERATION_FIELD_MANAGER in managers
        await _annotate(embedded, None)
        forged = {"metadata": {"annotations": {names.MIG_OPERATION_ANNOTATION: "{"}}}
        await embedded.api.patch(NODES, "n1", forged, kind=Patch.MERGE)
        await embedded.until(
            lambda: names.MIG_OPERATION_ANNOTATION not in (node(embedded)["metadata"].get("annotations") or {}),
            "its end",
        )


async def _obey(found: Whole, pods: list[str]) -> None:
    """The agent answers the order: these pods hold the GPU."""
    given = read_order(node(found)["metadata"].get("annotations") or {})
    assert given is not None
    held = tuple(HolderPod(namespace="default", name=name) for name in pods)
    said = {names.OPERATION_REPORT_ANNOTATION: encode(answer(given, holders=held))}
    await found.api.patch(NODES, "n1", {"metadata": {"annotations": said}}, kind=Patch.MERGE)


async def test_the_node_is_told_which_budget_it_waits_for(embedded: Whole) -> None:
    info = {"nodeInfo": {"bootID": "b1"}}
    await embedded.api.patch(NODES, "n1", {"status": info}, kind=Patch.MERGE, subresource="status")
    pods = await replicas(embedded, 2)
    await disruption_budget(embedded, "web-pdb")
    wish = mig_request.request(key="r1", config="all-1g.10gb", layouts=(layout(),))
    async with engine(embedded):
        await _annotate(embedded, mig_request.encode(wish))
        annotations = lambda: node(embedded)["metadata"].get("annotations") or {}  # noqa: E731
        await embedded.until(lambda: read_order(annotations()) is not None, "the order")
        assert not node(embedded)["spec"].get("unschedulable")
        await _obey(embedded, pods)
        await embedded.until(
            lambda: (word := _told(embedded)) is not None and "disruption budget web-pdb needs 2" in word.message,
            "the budget's name",
        )
        word = _told(embedded)
        assert word is not None
        assert (word.phase, pods[0] in word.message) == ("Draining", True)
        print(f"\n{word.message}")
