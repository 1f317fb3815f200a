"""A process on a node finds its Node, or says which name was wrong."""

from __future__ import annotations

import pytest

from kgpu.base.errors import KubeError
from kgpu.kube.fake import FakeApi
from kgpu.kube.nodes import get_node
from kgpu.kube.port import NODES, name_of


async def test_the_node_or_three_parts() -> None:
    api = FakeApi()
    await api.create(NODES, {"metadata": {"name": "n1"}})
    assert name_of(await get_node(api, "n1")) == "n1"
    with pytest.raises(KubeError) as missing:
        await get_node(api, "n2")
    assert "n2" in missing.value.what
    assert "--node-name" in missing.value.remedy
