"""Another number of pods: those that the controllers would end go, and those that they would make come."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from kgpu.base.errors import ConfigError
from kgpu.lab.embedded.controllers.pods import deletion_order
from kgpu.placement import scaling, workloads
from kgpu.placement.answer import answer
from kgpu.placement.model import WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from kgpu.placement.scaling import DELETION_COST
from tests.placement.clusters import Object, by_name, node, pod, state
from tests.placement.test_volumes import claim, storage, volume

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def ask(*objects: Object, scale: str) -> WhatIfAnswer:
    return answer(WhatIfQuestion(scale=(scale,)), objects)


def workload(kind: str, replicas: int, **spec: object) -> Object:
    template = {"metadata": {}, "spec": pod("x", 1)["spec"]}
    return {
        "kind": kind, "metadata": {"name": "serve", "namespace": "ml"},
        "spec": {"replicas": replicas, "template": template, **spec},
    }  # fmt: skip


def test_a_pod_without_a_node_goes_before_one_that_runs() -> None:
    found = ask(node("a", 1), workload("ReplicaSet", 2), pod("runs", 1, "a"), pod("waits", 1), scale="ml/rs/serve=1")
    assert found.outcomes == ()
    assert found.changes == ("scale ml/ReplicaSet/serve from 2 to 1, which ends waits",)
    assert found.after[0].free == 0


def test_a_pod_that_ends_already_is_not_counted() -> None:
    going = pod("going", 1, "a")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = ask(node("a"), workload("ReplicaSet", 1), pod("p", 1, "a"), going, scale="ml/rs/serve=2")
    assert found.changes == ("scale ml/ReplicaSet/serve from 1 to 2",)
    assert len(found.outcomes) == 1


def drawn(seed: int) -> list[Object]:
    """Pods of one ReplicaSet in all states, whose ages are of different orders of magnitude."""
    draw = random.Random(seed)
    found = []
    for at in range(draw.randint(2, 8)):
        one = pod(f"p{at}", 1, draw.choice(("", "a", "b")))
        status, metadata = one["status"], one["metadata"]
        status["phase"] = draw.choice(("Pending", "Running", "Running", "Unknown", ""))
        ages = [dt.timedelta(seconds=4**exponent) for exponent in draw.sample(range(1, 12), 2)]
        metadata["creationTimestamp"], ready = ((NOW - age).strftime("%Y-%m-%dT%H:%M:%SZ") for age in ages)
        metadata["uid"] = f"{draw.random()}"
        if draw.random() < 0.6:
            row = {"type": "Ready", "status": draw.choice(("True", "True", "False")), "lastTransitionTime": ready}
            status["conditions"] = [row]
        if draw.random() < 0.3:
            status["containerStatuses"] = [{"restartCount": draw.randint(0, 3)}]
        if draw.random() < 0.4:
            metadata["annotations"] = {DELETION_COST: draw.choice(("-3", "2", "10", "much"))}
        found.append(one)
    return found


@pytest.mark.parametrize("seed", range(200))
def test_the_order_is_that_of_the_controllers(seed: int) -> None:
    pods = drawn(seed)
    known = state(node("a"), node("b"), *pods)
    views = workloads.pods_of_workload(known, "ml", "ReplicaSet", "serve")
    expected = [one["metadata"]["name"] for one in deletion_order(pods, pods, NOW)]
    assert [one.name for one in scaling.first_to_go(known, views)] == expected


def test_of_a_stateful_set_the_highest_numbers_go() -> None:
    pods = [pod(f"serve-{at}", 1, on, owner="StatefulSet/serve") for at, on in ((0, ""), (9, "a"), (10, "a"))]
    found = ask(node("a"), workload("StatefulSet", 11), *pods, scale="ml/sts/serve=1")
    assert found.changes[0].endswith("from 3 to 1, which ends serve-10, serve-9")
    assert by_name(found.outcomes) == {"serve-0": "a"}


def test_a_stateful_set_fills_its_numbers_from_its_first() -> None:
    pods = [pod(f"serve-{at}", 1, "a", owner="StatefulSet/serve") for at in (5, 7)]
    found = ask(node("a"), workload("StatefulSet", 3, ordinals={"start": 5}), *pods, scale="ml/sts/serve=4")
    assert by_name(found.outcomes) == {"serve-6": "a", "serve-8": "a"}


def test_a_stateful_sets_new_pods_get_the_claims_of_their_templates_or_those_that_they_left() -> None:
    template = {"metadata": {"name": "data"}, "spec": claim("data")["spec"]}
    left = claim("data-serve-1", volumeName="vb")
    left["status"], left["metadata"]["annotations"] = {"phase": "Bound"}, {"pv.kubernetes.io/bind-completed": "yes"}
    volumes = [volume("vb", "b", claimRef={"namespace": "ml", "name": "data-serve-1"}), volume("va", "a")]
    found = ask(
        node("a"), node("b"), storage(), left, *volumes, workload("StatefulSet", 0, volumeClaimTemplates=[template]),
        scale="ml/sts/serve=3",
    )  # fmt: skip
    assert by_name(found.outcomes) == {"serve-0": "a", "serve-1": "b", "serve-2": ""}
    assert "didn't find available persistent volumes to bind" in found.without_node[0].message


def test_a_stateful_set_whose_template_is_not_known_gets_no_more_pods() -> None:
    with pytest.raises(ConfigError, match="are not known"):
        ask(node("a"), pod("serve-0", 1, "a", owner="StatefulSet/serve"), scale="ml/sts/serve=2")
