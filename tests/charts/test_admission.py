"""The policy that keeps an agent to its own Node: whom it is about, and when the chart has it."""

from __future__ import annotations

import json

import kubernetes_validate
import pytest

from kgpu.formats.names import AGENT_DAEMON_SET
from kgpu.formats.operands import BY_ROLE, OPERANDS
from tests.charts.conftest import NAMESPACE, Chart, Made

KIND = "ValidatingAdmissionPolicy"
NAME = "kgpu-agent-own-node"
FEATURES = "kgpu-agent-own-features"
EVENTS = "kgpu-agent-own-events"
DEVICES = "kgpu-agent-own-devices"
RIGHTS = "kgpu-operator-own-rights"
ORDERS = "kgpu-node-orders"
APPROVAL = "kgpu-operation-approval"
RECORD = "kgpu-operation-record"
PARAMETERS = "kgpu-claim-parameters"
NAMES = (NAME, FEATURES, EVENTS, DEVICES, PARAMETERS, RIGHTS, ORDERS, APPROVAL, RECORD)
SERVED = ("--api-versions", f"admissionregistration.k8s.io/v1/{KIND}")
KUBERNETES = ("--kube-version", "v1.30.0")
CLAIMS = "dra.enabled=true"


def has(made: Made) -> bool:
    assert made.has(KIND) == made.has(f"{KIND}Binding")
    return made.has(KIND)


def test_objects_that_kubernetes_admits(chart: Chart) -> None:
    made = chart(CLAIMS, words=(*SERVED, *KUBERNETES))
    for name in NAMES:
        for kind in (KIND, f"{KIND}Binding"):
            obj = made.one(kind, name)
            for version in ("1.30", "1.35"):
                kubernetes_validate.validate(obj, version, strict=True)
        assert made.one(f"{KIND}Binding", name)["spec"] == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    ("sets", "words", "there"),
    [
        ((), (*SERVED, *KUBERNETES), True),
        ((), (*SERVED, "--kube-version", "v1.33.5-eks-1"), True),
        ((), (*SERVED, "--kube-version", "v1.29.9"), False),
        ((), KUBERNETES, False),
        (("admissionPolicy.enabled=false",), (*SERVED, *KUBERNETES), False),
    ],
)
def test_it_is_there_where_it_can_work(chart: Chart, sets, words, there) -> None:
    assert has(chart(*sets, words=words)) == there


@pytest.mark.parametrize("name", [NAME, FEATURES, EVENTS, DEVICES])
def test_it_is_about_every_account_of_an_agent_and_no_other(chart: Chart, name: str) -> None:
    spec = chart(CLAIMS, words=(*SERVED, *KUBERNETES)).one(KIND, name)["spec"]
    (condition,) = spec["matchConditions"]
    start, _, users = condition["expression"].partition(" in ")
    assert start == "request.userInfo.username"
    agents = {AGENT_DAEMON_SET, *(operand.account for operand in BY_ROLE.values())}
    assert set(json.loads(users)) == {f"system:serviceaccount:{NAMESPACE}:{name}" for name in agents}
    others = {"gpu-operator", *(one.account for one in OPERANDS if one.name == "driver")}
    assert not agents & others


def test_it_follows_the_releases_namespace(chart: Chart) -> None:
    made = chart(CLAIMS, words=(*SERVED, *KUBERNETES, "--namespace", "elsewhere"))
    accounts = (NAME, FEATURES, EVENTS, DEVICES, RIGHTS, ORDERS)
    texts = [made.one(KIND, name)["spec"]["matchConditions"][0]["expression"] for name in accounts]
    assert "system:serviceaccount:elsewhere:kgpu-agent" in texts[0]
    assert "system:serviceaccount:elsewhere:gpu-operator" in texts[accounts.index(RIGHTS)]
    assert "system:serviceaccount:elsewhere:gpu-operator" in texts[accounts.index(ORDERS)]
    assert not any(f":{NAMESPACE}:" in text for text in texts)


def test_without_operations_there_is_nothing_to_approve(chart: Chart) -> None:
    made = chart(CLAIMS, "operations.enabled=false", words=(*SERVED, *KUBERNETES))
    names = {one["metadata"]["name"] for one in made.objects if one["kind"] == KIND}
    assert names == set(NAMES) - {APPROVAL, RECORD}


def test_devices_of_nodes_are_guarded_where_there_are_claims(chart: Chart) -> None:
    assert not chart(words=(*SERVED, *KUBERNETES)).has(KIND, DEVICES)
    assert chart(CLAIMS, words=(*SERVED, *KUBERNETES)).has(KIND, DEVICES)


@pytest.mark.parametrize("name", NAMES)
def test_what_concerns_nodes_of_everybody_never_stops_a_kubelet(chart: Chart, name: str) -> None:
    """A policy that can't be evaluated refuses everything that it is about, unless it is told to ignore that."""
    spec = chart(CLAIMS, words=(*SERVED, *KUBERNETES)).one(KIND, name)["spec"]
    assert spec["failurePolicy"] == ("Ignore" if name in (ORDERS, PARAMETERS) else "Fail")
