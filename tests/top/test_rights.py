"""What ``kgpu top`` asks a cluster for, against the rights that its documentation hands out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kgpu.base.errors import UserError
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS
from kgpu.top.cluster import ClusterSource
from kgpu.top.exporters import Exporters
from kgpu.top.find import Via
from tests.top.exporting import exporter_pod, gpu_node

RIGHTS = Path(__file__).resolve().parents[2] / "docs/how-to/top-rights.yaml"


async def test_it_asks_for_what_the_shipped_rights_grant_and_no_more() -> None:
    granted = {
        (verb, resource, obj["metadata"].get("namespace", ""))
        for obj in yaml.safe_load_all(RIGHTS.read_text())
        for rule in obj.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked: set[tuple[str, str, str]] = set()

    class Asked(FakeApi):
        async def list(self, resource, *, namespace="", **how):
            asked.add(("list", resource.plural, namespace))
            return await super().list(resource, namespace=namespace, **how)

        async def get(self, resource, name, *, namespace="", **how):
            asked.add(("get", resource.plural, namespace))
            return await super().get(resource, name, namespace=namespace, **how)

        async def pod_page(self, namespace, *where, **how):
            asked.add(("get", "pods/proxy", namespace))
            return await super().pod_page(namespace, *where, **how)

    api = Asked()
    api.put(PODS, exporter_pod("a"))
    api.put(NODES, gpu_node("a"))
    source = ClusterSource(api, Exporters(api), via=Via.PROXY, inside=False)
    (target,) = await source.targets()
    with pytest.raises(UserError):
        await source.look(target)
    assert asked == granted
