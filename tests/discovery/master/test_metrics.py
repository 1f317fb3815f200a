"""The figures of node feature discovery's master and collector, by its names."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from kgpu import __version__
from kgpu.discovery.master.metrics import DURATION, ERRORS, GROUPS, REQUESTS, UPDATES, MasterFigures
from kgpu.discovery.rules.outputs import ANNOTATION, LABEL, RESOURCE, TAINT, OutputError, RejectedOutput

REFERENCE = {
    "build_info", "node_update_requests_total", "node_updates_total", "node_update_failures_total",
    "node_labels_rejected_total", "node_extendedresources_rejected_total", "node_taints_rejected_total",
    "nodefeaturerule_processing_errors_total", "node_feature_group_update_requests_total",
}  # fmt: skip


def samples(figures: MasterFigures) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(figures.text())
        for one in family.samples
    }


def test_all_names_are_there_from_the_start():
    found = samples(MasterFigures())
    assert {name.removeprefix("nfd_master_") for name, _ in found if name.startswith("nfd_master_")} == REFERENCE
    kind = frozenset({("kind", "NodeFeature")})
    assert found["nfd_gc_objects_deleted_total", kind] == found["nfd_gc_object_delete_failures_total", kind] == 0
    assert found["nfd_gc_build_info", frozenset({("version", __version__)})] == 1


def test_what_is_counted():
    moments = iter((1.0, 1.02, 5.0, 8.0))
    figures = MasterFigures(now=lambda: next(moments))
    refused = [
        RejectedOutput(kind=one, key="a/b", error=OutputError("a", "b", "c"))
        for one in (LABEL, LABEL, RESOURCE, TAINT, ANNOTATION)
    ]
    figures.evaluated(refused, 3)
    figures.count(UPDATES)
    figures.count(GROUPS)
    for name in ("mine", 'odd"name'):
        with figures.timed(name):
            pass
    found, none = samples(figures), frozenset()
    assert found[REQUESTS, none] == found[UPDATES, none] == found[GROUPS, none] == 1
    assert found[ERRORS, none] == 3
    assert found["nfd_master_node_labels_rejected_total", none] == 2
    assert found["nfd_master_node_taints_rejected_total", none] == 1
    buckets = {
        limit: found[f"{DURATION}_bucket", frozenset({("name", "mine"), ("le", limit)})]
        for limit in ("0.01", "0.025", "+Inf")
    }
    assert buckets == {"0.01": 0, "0.025": 1, "+Inf": 1}
    assert found[f"{DURATION}_count", frozenset({("name", 'odd"name')})] == 1
    figures.keep(["mine"])
    assert not [name for name, labels in samples(figures) if ("name", 'odd"name') in labels]
