"""A node group that has no nodes: what ``kgpu advise nodepool`` prints is all that the cluster autoscaler knows of it.

Each form is read back as the autoscaler's cloud provider reads it, into the node that it reckons with, and kgpu's own
scheduling rules are asked whether the pods of the real nodes would fit there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kgpu.advise.pool_text import as_data
from kgpu.advise.pools import facts
from kgpu.placement.answer import answer
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import H100, PRODUCT, Object, node, pod

SLICE = "nvidia.com/mig-1g.10gb"
ODD = "team_of/who_pays"
"""A label with underscores, by which pods select."""
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}
Tags = Mapping[str, str]


def template(labels: Tags, taints: Tags, resources: Tags) -> Object:
    """The node that the autoscaler makes up; of the machine type it knows processors and memory."""
    made = node("template", 0)
    made["metadata"]["labels"] = {"kubernetes.io/hostname": "template", **labels}
    made["status"]["allocatable"] = {"cpu": "64", "memory": "512Gi", "pods": "110", **resources}
    rows = [(key, *said.split(":", 1)) for key, said in taints.items()]
    made["spec"]["taints"] = [{"key": key, "value": value, "effect": effect} for key, value, effect in rows]
    return made


def below(tags: Tags, part: str, written: Callable[[str], str] = str) -> dict[str, str]:
    return {written(key.split(part, 1)[1]): value for key, value in tags.items() if part in key}


def of_group(tags: Tags) -> Object:
    base = "k8s.io/cluster-autoscaler/node-template/"
    return template(*(below(tags, f"{base}{part}/") for part in ("label", "taint", "resources")))


def of_scale_set(tags: Tags) -> Object:
    base = "k8s.io_cluster-autoscaler_node-template_"
    assert not any("/" in key for key in tags)

    def written(key: str) -> str:
        return key.replace("_", "/").replace("~2", "_")

    return template(*(below(tags, f"{base}{part}_", written) for part in ("label", "taint", "resources")))


def of_machines(annotations: Tags) -> Object:
    said = below(annotations, "capacity.cluster-autoscaler.kubernetes.io/")
    labels, taints = (dict(row.split("=", 1) for row in said[part].split(",")) for part in ("labels", "taints"))
    return template(labels, taints, {said["gpu-type"]: said["gpu-count"]})


def pool_node(provider: str) -> Object:
    labels = {"eks.amazonaws.com/nodegroup": "mig", "nvidia.com/mig.strategy": "mixed", ODD: "ml"}
    one = node("real", labels=labels, taints=[TAINT], providerID=provider)
    one["status"]["allocatable"] = {"cpu": "64", "memory": "512Gi", "pods": "110", SLICE: "56"}
    return one


def wanting(count: int = 7) -> Object:
    """A pod that the pool's nodes are there for."""
    selector = {PRODUCT: H100, ODD: "ml", "nvidia.com/mig.strategy": "mixed"}
    return pod("new", count, owner="", resource=SLICE, nodeSelector=selector, tolerations=[TOLERATION])


def fits(where: Object, wanted: Object) -> bool:
    found = answer(WhatIfQuestion(manifests=(wanted,)), [where])
    return not found.without_node


FORMS: dict[str, Callable[[Tags], Object]] = {
    "aws:///a/i-1": of_group, "azure:///x": of_scale_set, "other://x": of_machines,
}  # fmt: skip


@pytest.mark.parametrize("provider", FORMS)
def test_what_is_printed_makes_a_node_of_an_empty_group_fit_as_a_real_one_does(provider: str) -> None:
    real = pool_node(provider)
    said: dict[str, Any] = as_data(facts("mig", [real], [wanting()]))["set"]
    made_up = FORMS[provider](said)
    assert made_up["spec"]["taints"] == [TAINT]
    intolerant = wanting()
    del intolerant["spec"]["tolerations"]
    for wanted in (wanting(), wanting(56), wanting(57), intolerant):
        assert fits(made_up, wanted) is fits(real, wanted)
    assert fits(made_up, wanting(56))


def test_a_group_of_which_nothing_is_said_helps_nobody() -> None:
    bare = template({}, {}, {})
    assert not fits(bare, wanting())
    labelled = template({PRODUCT: H100, ODD: "ml", "nvidia.com/mig.strategy": "mixed"}, {}, {})
    assert not fits(labelled, wanting()), "it lacks the slices"
    counted = template({}, {}, {SLICE: "56"})
    assert not fits(counted, wanting()), "it lacks kgpu's labels"
