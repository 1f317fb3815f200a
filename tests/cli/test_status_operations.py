"""``kgpu status`` on operations on nodes: what is not over, what failed, the breaker, and a cluster without the kind."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import pytest
from click.testing import CliRunner

from kgpu.base.times import stamp_of
from kgpu.cli import status as module
from kgpu.cli._status_operations import MOST_ROWS, read_operations
from kgpu.formats import names
from kgpu.kube.kinds import DEPLOYMENTS, NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, Object
from tests.operations.world import Cluster
from tests.operator.test_overview import deployment, manifest
from tests.operator.world import node_object

SPACE = "elsewhere"
"""The operator's namespace."""


# A whole second, as times in the API are: how old something is does not hang on when in a second it is looked at.
NOW: Final = float(int(time.time()))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def operation(cluster: Cluster, name: str, phase: str = "", *, node: str = "n1", ago: float = 60, **told: Any) -> None:
    spec = told.pop("spec", {})
    cluster.operation(name, node, **spec)
    if phase:
        when = stamp_of(NOW - ago)
        over = {"completedAt": when} if phase in {"Complete", "Failed"} else {}
        status = {"phase": phase, "phaseSince": when, "nodeUID": "u", **over, **told}
        cluster.put(NODE_OPERATIONS, {**cluster.object(NODE_OPERATIONS, name), "status": status})


def open_breaker(cluster: Cluster, **data: str) -> None:
    body: Object = {"metadata": {"name": names.REMEDIATION_CONFIG_MAP, "namespace": SPACE}, "data": data}
    cluster.put(CONFIG_MAPS, body)


async def lines(cluster: Cluster) -> list[str]:
    return (await read_operations(cluster, SPACE)).lines(NOW)


async def test_where_nothing_is_done_nothing_is_said(cluster: Cluster) -> None:
    operation(cluster, "old", "Complete", result="Succeeded")
    assert await lines(cluster) == []


async def test_what_is_not_over_and_how_much_of_it_waits_for_approval(cluster: Cluster) -> None:
    operation(cluster, "m", "Acting", message="held")
    operation(cluster, "s", "Pending", node="n2", spec={"approved": False}, message="it waits for approval")
    head, first, second = await lines(cluster)
    assert head == "2 operations on nodes, 1 of which waits for approval:"
    assert first.split() == ["m", "n1", "Maintenance", "Acting", "60s", "held"]
    assert second.split()[:4] == ["s", "n2", "Maintenance", "Pending"]


async def test_a_single_one_that_waits_is_not_counted_twice(cluster: Cluster) -> None:
    operation(cluster, "s", "Pending", spec={"approved": False}, message="it waits for approval")
    assert (await lines(cluster))[0] == "1 operation on a node, which waits for approval:"


async def test_what_failed_within_a_day_until_another_succeeds(cluster: Cluster) -> None:
    operation(cluster, "f", "Failed", result="TransientFailure", message="not well", ago=7200)
    operation(cluster, "older", "Failed", result="TransientFailure", node="n2", ago=100_000)
    head, line = await lines(cluster)
    assert head == "1 operation has failed within a day:"
    assert line.split() == ["f", "n1", "Maintenance", "Failed", "(TransientFailure)", "2h", "not", "well"]
    operation(cluster, "again", "Complete", result="Succeeded")
    assert await lines(cluster) == []


async def test_many_are_counted(cluster: Cluster) -> None:
    for number in range(MOST_ROWS + 5):
        operation(cluster, f"m{number}", "Pending", node=f"n{number}")
    shown = await lines(cluster)
    assert len(shown) == MOST_ROWS + 2
    assert shown[-1] == "  and 5 more; kgpu operations list --all has them all"


async def test_one_of_another_version_is_shown(cluster: Cluster) -> None:
    operation(cluster, "later", spec={"type": "Repaint"})
    head, line = await lines(cluster)
    assert head == "1 operation on a node:"
    assert "this version can't read it" in line


async def test_an_open_breaker_says_why_and_how_to_go_on(cluster: Cluster) -> None:
    open_breaker(cluster, open="4 of 9 nodes\x1b[31m call")
    why, remedy = await lines(cluster)
    assert why == "✘ kgpu begins no operation on its own: 4 of 9 nodes\ufffd[31m call"
    assert remedy.endswith(f"then kubectl --namespace {SPACE} delete configmap {names.REMEDIATION_CONFIG_MAP}")
    open_breaker(cluster)
    assert (await lines(cluster))[0].endswith("it was stopped by hand")


@pytest.mark.parametrize(("value", "told"), [("true", True), ("false", False), (None, False)])
async def test_an_absent_kind_is_told_where_the_operator_has_operations_on(
    cluster: Cluster, value: str | None, told: bool
) -> None:
    cluster.unserved.add(NODE_OPERATIONS)
    assert await lines(cluster) == []
    cluster.put(DEPLOYMENTS, deployment(**({names.ENV_OPERATIONS: value} if value else {})))
    expected = ["not known: operations on nodes: the cluster has no kind NodeOperation"] if told else []
    shown = await lines(cluster)
    assert shown[:1] == expected
    assert [line for line in shown if "kgpu crds apply" in line] == shown[1:]


async def test_without_the_right_to_list_them_that_is_said_and_no_error(cluster: Cluster) -> None:
    cluster.put(DEPLOYMENTS, deployment(**{names.ENV_OPERATIONS: "true"}))
    cluster.refuse[("list", NODE_OPERATIONS.plural)] = 403
    (line,) = await lines(cluster)
    assert line.startswith("not known: operations on nodes: ")


async def test_a_breaker_that_may_not_be_read_is_left_out(cluster: Cluster) -> None:
    cluster.refuse[("list", CONFIG_MAPS.plural)] = 403
    operation(cluster, "m", "Acting")
    assert len(await lines(cluster)) == 2


def test_the_command_has_all_of_it_also_as_json(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def close() -> None:
        pass

    from kgpu.kube import kinds
    from kgpu.kube.port import NODES

    monkeypatch.setattr(cluster, "close", close)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    cluster.put(NODES, node_object())
    cluster.put(kinds.CLUSTER_POLICIES, manifest())
    cluster.put(DEPLOYMENTS, deployment())
    operation(cluster, "m", "Acting")
    operation(cluster, "f", "Failed", result="TransientFailure")
    open_breaker(cluster, open="4 of 9 nodes call")
    shown = CliRunner().invoke(module.status, []).output.splitlines()
    assert "1 operation on a node:" in shown
    assert "✘ kgpu begins no operation on its own: 4 of 9 nodes call" in shown
    found = json.loads(CliRunner().invoke(module.status, ["-o", "json"]).output)
    assert [row["name"] for row in found["operations"]] == ["m"]
    assert [row["name"] for row in found["failed_operations"]] == ["f"]
    assert found["remediation_stopped"] == "4 of 9 nodes call"


async def test_machines_that_have_to_be_replaced_are_named(cluster: Cluster) -> None:
    operation(cluster, "m", "Acting", node="n3")
    assert not any("replaced" in line for line in await lines(cluster))
    operation(cluster, "r1", "Acting", node="n1", spec={"type": "Replace"})
    assert "✘ the machine of this node has to be replaced: n1" in await lines(cluster)
    operation(cluster, "r2", "Acting", node="n2", spec={"type": "Replace"})
    operation(cluster, "r4", "Draining", node="n4", spec={"type": "Replace"})
    said = await lines(cluster)
    assert "✘ the machines of 2 nodes have to be replaced: n1, n2" in said
    assert "    to do: kgpu operations show r1" in said
