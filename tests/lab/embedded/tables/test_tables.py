"""Tables: rows that the real printers have shown for the same objects, and the JSONPaths of custom columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.tables import custom, render
from kgpu.lab.embedded.tables.text import duration, selector_text

KINDS = Kinds()
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BORN = (NOW - timedelta(minutes=5)).isoformat()


def row(group: str, plural: str, **fields: Any) -> list[Any]:
    obj = {**fields, "metadata": {"name": "n", "creationTimestamp": BORN, **fields.get("metadata", {})}}
    table = render(KINDS.need(group, plural), [obj], now=NOW)
    assert len(table["columnDefinitions"]) == len(table["rows"][0]["cells"])
    cells: list[Any] = table["rows"][0]["cells"]
    return cells


def pod(*statuses: Any, phase: str = "Running", **status: Any) -> list[Any]:
    spec = {"containers": [{"name": "a"}, {"name": "b"}]}
    return row("", "pods", spec=spec, status={"phase": phase, "containerStatuses": list(statuses), **status})


CRASHED = {"name": "a", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
           "lastState": {"terminated": {"finishedAt": "2026-01-01T11:59:00Z"}}}  # fmt: skip
DONE = {"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
KILLED = {"name": "b", "state": {"terminated": {"exitCode": 137, "signal": 9}}}
READY = {"name": "b", "ready": True, "state": {"running": {}}}
INIT = {"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("cells", "ready", "reason", "restarts"),
    [
        (pod(CRASHED, READY), "1/2", "CrashLoopBackOff", "3 (60s ago)"),
        (pod(DONE, DONE, phase="Succeeded"), "0/2", "Completed", "0"),
        (pod(DONE, KILLED, phase="Failed"), "0/2", "Signal:9", "0"),
        (pod(DONE, READY), "1/2", "NotReady", "0"),
        (pod(DONE, READY, conditions=[{"type": "Ready", "status": "True"}]), "1/2", "Running", "0"),
        (pod(phase="Pending", initContainerStatuses=[INIT]), "0/2", "Init:0/0", "0"),
        (pod(phase="Failed", reason="Evicted"), "0/2", "Evicted", "0"),
    ],
)
def test_pods(cells: list[Any], ready: str, reason: str, restarts: str) -> None:
    assert cells == ["n", ready, reason, restarts, "5m", "<none>", "<none>", "<none>", "<none>"]


def test_a_pod_that_is_done_says_so_beside_its_cells() -> None:
    obj = {"metadata": {"name": "n"}, "spec": {}, "status": {"phase": "Succeeded"}}
    found = render(KINDS.need("", "pods"), [obj], now=NOW)["rows"][0]
    assert found["conditions"][0]["reason"] == "Succeeded"
    assert found["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }


def test_rows_of_some_kinds() -> None:
    assert row("", "configmaps", data={"a": "1"}, binaryData={"b": ""}) == ["n", 2, "5m"]
    assert row("apps", "deployments", spec={"replicas": 2}, status={"readyReplicas": 1})[:4] == ["n", "1/2", 0, 0]
    assert row("batch", "jobs", spec={"completions": 3}, status={"succeeded": 1})[1:4] == ["Running", "1/3", ""]
    node = row("", "nodes", spec={"unschedulable": True}, status={"conditions": [{"type": "Ready", "status": "True"}]})
    assert node[:4] == ["n", "Ready,SchedulingDisabled", "<none>", "5m"]
    ports = [{"port": 80, "nodePort": 30000, "protocol": "TCP"}]
    service = row("", "services", spec={"type": "NodePort", "clusterIPs": ["10.0.0.1"], "ports": ports})
    assert service[1:5] == ["NodePort", "10.0.0.1", "<none>", "80:30000/TCP"]
    assert row("rbac.authorization.k8s.io", "roles") == ["n", BORN]
    quota = row("", "resourcequotas", status={"hard": {"pods": "4", "limits.cpu": "2"}, "used": {"pods": "1"}})
    assert quota[1:3] == ["pods: 1/4", "limits.cpu: 0/2"]


def test_every_kind_has_as_many_cells_as_columns() -> None:
    for kind in KINDS:
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x"}}
        table = render(kind, [obj], now=NOW)
        assert table["rows"][0]["cells"], kind
        if kind.plural != "ipaddresses":  # as on the real server
            assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"]), kind


def test_lists_watches_and_objects() -> None:
    kind, obj = KINDS.need("", "configmaps"), {"metadata": {"name": "a", "resourceVersion": "7"}}
    assert render(kind, [obj], now=NOW)["metadata"] == {"resourceVersion": "7"}
    meta = {"resourceVersion": "9", "continue": "t", "remainingItemCount": 3}
    assert render(kind, [obj, obj], now=NOW, list_meta=meta)["metadata"] == meta
    assert render(kind, [obj], now=NOW, headers=False)["columnDefinitions"] is None
    assert render(kind, [obj], now=NOW, include_object="None")["rows"][0]["object"] is None
    assert render(kind, [obj], now=NOW, include_object="Object")["rows"][0]["object"] is obj


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (3600, "60m"), (10800, "3h"), (11400, "3h10m"),
        (100000, "27h"), (200000, "2d7h"), (864000, "10d"), (3 * 365 * 86400, "3y"), (9 * 365 * 86400, "9y"),
    ],
)  # fmt: skip
def test_durations(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_selectors() -> None:
    expressions = [
        {"key": "c", "operator": "NotIn", "values": ["2", "1"]},
        {"key": "a0", "operator": "Exists"},
        {"key": "z", "operator": "DoesNotExist"},
    ]
    assert selector_text({"matchLabels": {"a": "b"}, "matchExpressions": expressions}) == "a=b,a0,c notin (1,2),!z"


WIDGET = {
    "metadata": {"name": "w", "creationTimestamp": BORN},
    "spec": {
        "a.b": "dotted",
        "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}],
        "map": {"k": 1},
        "on": True,
        "f": 2.5,
        "unzoned": BORN[:19],
    },
}


@pytest.mark.parametrize(
    ("path", "kind", "cell"),
    [
        (".spec.a\\.b", "string", "dotted"), (".spec['a.b']", "string", "dotted"), (".spec.list[1].n", "string", "y"),
        (".spec.list[-1].v", "integer", 2), ('.spec.list[?(@.n=="y")].v', "integer", 2), (".spec.list[*].n", "string", "x"),
        (".spec.list[?(@.v>1)].n", "string", "y"), (".spec.map", "string", '{"k":1}'), (".spec.on", "boolean", True),
        (".spec.on", "integer", None), (".spec.f", "integer", 2), (".spec.f", "number", 2.5), (".spec.none", "string", None),
        (".metadata.creationTimestamp", "date", "5m"), (".spec.map", "date", None), (".metadata.name", "date", "<invalid>"),
        (".spec.unzoned", "date", "<invalid>"),
        (".spec[", "string", None), (".spec.list[7].n", "string", None),
    ],
)  # fmt: skip
def test_custom_columns(path: str, kind: str, cell: Any) -> None:
    assert custom.cell({"name": "x", "type": kind, "jsonPath": path})(WIDGET, NOW) == cell


def test_custom_kinds_show_their_age_unless_they_say_otherwise() -> None:
    kind = ApiKind(group="x", version="v1", plural="ws", kind="W", custom=True)
    table = render(kind, [WIDGET], now=NOW)
    assert [one["name"] for one in table["columnDefinitions"]] == ["Name", "Age"]
    assert table["rows"][0]["cells"] == ["w", "5m"]
    columns = [{"name": "On", "type": "boolean", "jsonPath": ".spec.on", "priority": 1}]
    table = render(kind, [WIDGET], now=NOW, printer_columns=columns)
    assert table["columnDefinitions"][1]["priority"] == 1
    assert table["rows"][0]["cells"] == ["w", True]
