"""The Service of each DeviceConfig, and which agents are behind it."""

from __future__ import annotations

import dataclasses
from typing import Any

import kubernetes_validate
import pytest

from kgpu.formats import names
from kgpu.operator.model import AgentPod, ClusterPlan, DeviceConfig, Object
from kgpu.operator.objects.device_config_services import MOST
from kgpu.operator.plan import plan
from tests.operator.test_device_configs import SELECTOR, amd, config, seen, working
from tests.operator.test_vendors import documents
from tests.operator.world import HOST_DRIVER, NAMESPACE, SETTINGS, healthy_node, policy

FOLLOWED = dataclasses.replace(SETTINGS, device_configs=True)
SERVICE = "default-metrics-exporter"


def exporting(name: str = "default", **exporter: Any) -> DeviceConfig:
    return config(name, spec={"selector": SELECTOR, "metricsExporter": {"enable": True, **exporter}})


def made(
    *configs: DeviceConfig, nodes: tuple[Object, ...] = (), agents: dict[str, AgentPod] | None = None
) -> ClusterPlan:
    observed = working(seen(*configs, nodes=nodes))
    return plan(dataclasses.replace(observed, agents=agents or {}), FOLLOWED)


def service(found: ClusterPlan, name: str = SERVICE) -> Object | None:
    services = [one for one in found.objects if one["kind"] == "Service" and one["metadata"]["name"] == name]
    return services[0] if services else None


def test_it_has_amds_name_and_what_the_device_config_says_of_it() -> None:
    found = made(exporting(port=5000, serviceType="NodePort", nodePort=30500, serviceAnnotations={"team": "ml"}))
    mine = service(found)
    assert mine is not None
    kubernetes_validate.validate(mine, "1.33", strict=True)
    assert mine["spec"] == {
        "type": "NodePort",
        "ports": [{"name": "metrics", "port": 5000, "targetPort": 9400, "protocol": "TCP", "nodePort": 30500}],
    }
    assert mine["metadata"]["annotations"] == {"team": "ml"}
    owner = mine["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("DeviceConfig", "default", True)
    assert not owner["blockOwnerDeletion"]
    plain = service(made(exporting()))
    assert plain is not None
    assert plain["spec"]["type"] == "ClusterIP"
    assert plain["spec"]["ports"][0]["port"] == names.EXPORTER_PORT


def test_the_agents_of_its_nodes_alone_are_behind_it() -> None:
    """With their state; not those of NVIDIA's nodes, of nodes without the exporter, and of nodes without an agent."""
    off = amd("off", **{names.LABEL_DEPLOY_PREFIX + "dcgm-exporter": "false"})
    nodes = (amd("a"), amd("b"), off, amd("none"), healthy_node("nvidia"))
    agents = {
        "a": AgentPod(address="10.0.0.1", ready=True), "b": AgentPod(address="10.0.0.2"),
        "off": AgentPod(address="10.0.0.3", ready=True), "nvidia": AgentPod(address="10.0.0.4", ready=True),
    }  # fmt: skip
    (one,) = made(exporting(port=5000), nodes=nodes, agents=agents).endpoint_slices
    kubernetes_validate.validate(one, "1.33", strict=True)
    assert one["metadata"]["labels"] == {
        "kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "kgpu-operator",
    }  # fmt: skip
    assert one["endpoints"] == [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "nodeName": "a"},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": False}, "nodeName": "b"},
    ]
    assert one["ports"] == [{"name": "metrics", "port": 9400, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("policy_env", "listens"), [([], 9400), ([{"name": "DCGM_EXPORTER_LISTEN", "value": ":9500"}], 9500)]
)
def test_its_port_is_another_name_for_the_port_on_which_every_agent_listens(
    policy_env: list[dict[str, str]], listens: int
) -> None:
    """The Service of NVIDIA's name, the monitors and ``kgpu top`` ask all agents on one port."""
    spec = {**HOST_DRIVER, "dcgmExporter": {"env": policy_env}}
    observed = dataclasses.replace(
        working(seen(exporting(port=5000))), policies=(policy(spec=spec),), agents={"n1": AgentPod(address="10.0.0.1")}
    )
    found = plan(observed, FOLLOWED)
    of_amd, of_all = service(found), service(found, "nvidia-dcgm-exporter")
    assert of_amd is not None
    assert of_all is not None
    assert {port["targetPort"] for one in (of_amd, of_all) for port in one["spec"]["ports"]} == {listens}
    assert [one["ports"][0]["port"] for one in found.endpoint_slices] == [listens]
    env = documents(found).kinds["amd/default"].roles["exporter"].env
    assert env["DCGM_EXPORTER_LISTEN"] == f":{listens}"


def test_each_family_of_addresses_and_each_thousand_pods_has_a_slice() -> None:
    nodes = tuple(amd(f"n{index}") for index in range(MOST + 2))
    agents = {f"n{index}": AgentPod(address=f"10.0.{index // 250}.{index % 250}") for index in range(MOST + 1)}
    found = made(
        exporting(), nodes=nodes, agents={**agents, f"n{MOST + 1}": AgentPod(address="fd00::1")}
    ).endpoint_slices
    assert [(one["metadata"]["name"], one["addressType"], len(one["endpoints"])) for one in found] == [
        (f"{SERVICE}-ipv4-0", "IPv4", MOST), (f"{SERVICE}-ipv4-1", "IPv4", 1), (f"{SERVICE}-ipv6-0", "IPv6", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "configs",
    [
        (),
        (config(spec={"selector": SELECTOR}),),
        (exporting(selector={"nobody": "has it"}),),
        (config(spec={"selector": {"zone": "none"}, "metricsExporter": {"enable": True}}),),
    ],
    ids=["no DeviceConfig", "no exporter", "an exporter nowhere", "no nodes"],
)
def test_where_nothing_is_served_nothing_is_behind_it(configs: tuple[DeviceConfig, ...]) -> None:
    assert made(*configs, agents={"n1": AgentPod(address="10.0.0.1")}).endpoint_slices == ()


def test_it_goes_with_the_device_config_and_where_these_are_not_followed() -> None:
    leaving = dataclasses.replace(exporting(), deleting=True)
    assert service(made(leaving)) is None
    assert service(plan(working(seen(exporting())), SETTINGS)) is None


@pytest.mark.parametrize("name", ["1st", "with.dot", "x" * 50])
def test_a_name_that_no_service_can_have_is_told(name: str) -> None:
    found = made(exporting(name), agents={"n1": AgentPod(address="10.0.0.1")})
    assert service(found, f"{name}-metrics-exporter") is None
    assert found.endpoint_slices == ()
    told = [one for one in found.advice if one.reason == "ServiceNotMade"]
    assert [one.subject for one in told] == [f"DeviceConfig/{NAMESPACE}/{name}"]
