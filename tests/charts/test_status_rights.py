"""The manifest with the rights of ``kgpu status`` grants what that reads, and no more."""

from __future__ import annotations

import yaml

from kgpu.formats.names import GPU_OPERATOR_NAMESPACE
from kgpu.kube import kinds
from kgpu.operator import cluster_reading, openshift
from kgpu.operator.watching import feeds
from tests.charts.conftest import CHART

MANIFEST = CHART.parents[1] / "docs" / "how-to" / "status-rights.yaml"

Right = tuple[str, str, str]


def granted() -> dict[str, set[Right]]:
    """By the namespace in which they hold, "" for everywhere."""
    found: dict[str, set[Right]] = {}
    for obj in yaml.safe_load_all(MANIFEST.read_text()):
        for rule in obj.get("rules", ()):
            place = found.setdefault(obj["metadata"].get("namespace", ""), set())
            place |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    return found


def needed() -> dict[str, set[Right]]:
    """What the feeds of a look at a cluster that has every kind are, the search for the operator, and the question
    whether somebody else is one, too; and the operations on nodes.
    """
    every = feeds(GPU_OPERATOR_NAMESPACE)
    there = frozenset(kinds.plural_and_group(feed.scope.resource) for feed in every)
    found: dict[str, set[Right]] = {
        "": {
            ("apps", "deployments", "list"),
            ("authorization.k8s.io", "subjectaccessreviews", "create"),
            ("kgpu.dev", "nodeoperations", "list"),
        }
    }
    for feed in every:
        if cluster_reading._is_wanted(feed, there):
            resource = feed.scope.resource
            # What is in a namespace that most clusters lack is granted everywhere: the manifest is for all of them.
            place = "" if feed.scope.namespace == openshift.NAMESPACE else feed.scope.namespace
            found.setdefault(place, set()).add((resource.group, resource.plural, "list"))
    return found


def test_status_may_list_what_it_reads_and_no_more() -> None:
    assert granted() == needed()
