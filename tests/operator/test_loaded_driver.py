"""A node with another driver than the one that is asked for is not ready, and the message names both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgpu.formats import names
from kgpu.operator.model import ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.world import SETTINGS, driver, healthy_node, policy, report, settle

PLAIN: dict[str, Any] = {"driver": {"enabled": True}}
BY_CRD: dict[str, Any] = {"driver": {"enabled": True, "useNvidiaDriverCRD": True}}


def cluster(loaded: str, spec: Any, *, source: str = "container", **more: Any) -> ObservedCluster:
    said = msgspec.structs.replace(report(), driver=loaded, driver_source=source)
    node = read_node(healthy_node(report=said, labels={names.LABEL_DRIVER_OWNER: "special"} if more else {}))
    return settle(ObservedCluster(policies=(policy(spec=spec),), nodes=(node,), **more))


def driver_condition(observed: ObservedCluster) -> tuple[str, str]:
    (found,) = plan(observed, SETTINGS).policy_status.values()
    (one,) = [entry for entry in found["conditions"] if entry["type"] == "DriverReady"]
    return one["status"], one["message"]


def version(text: str) -> dict[str, Any]:
    return {"driver": {"enabled": True, "repository": "example.org", "image": "driver", "version": text}}


@pytest.mark.parametrize("asked", ["595.10.01", "595.10.01-ubuntu24.04", "595"])
def test_another_release_than_the_policys_is_not_ready(asked: str) -> None:
    status, message = driver_condition(cluster("580.65.06", version(asked)))
    assert status == "False"
    assert f"driver.version asks for driver {asked.partition('-')[0]}, and driver 580.65.06 is loaded" in message


@pytest.mark.parametrize("asked", ["580.65.06", "580.65.06-ubuntu24.04", "580", "25.3.0", f"sha256:{'a' * 64}"])
def test_the_same_release_and_what_names_none_are_ready(asked: str) -> None:
    assert driver_condition(cluster("580.65.06", version(asked)))[0] == "True"


def test_a_nodes_own_driver_is_whatever_it_is() -> None:
    assert driver_condition(cluster("570.10", version("595.10.01"), source="host"))[0] == "True"


def test_a_driver_of_its_own_kind_is_not_ready_either() -> None:
    found = cluster("580.65.06", BY_CRD, drivers=(driver("special", spec={"version": "595.10.01"}),))
    status = plan(found, SETTINGS).driver_status["special"]
    assert status["state"] == "notReady"
    told = " ".join(one["message"] for one in status["conditions"])
    assert "spec.version of NVIDIADriver special asks for driver 595.10.01, and driver 580.65.06 is loaded" in told
    assert driver_condition(found)[0] == "False"
