"""The NodeFeature object in which an agent says what its node has, where kgpu's operator carries out rules.

It has the node's name, as the replaced worker's has. It is written when it differs from what is wanted, and nobody owns
it: the operator deletes it once the node is gone or rules are switched off.
"""

from __future__ import annotations

from typing import Final

from kgpu.discovery.features.sources import ReadNode
from kgpu.discovery.rules.model import as_spec
from kgpu.formats import names
from kgpu.kube.port import NODE_FEATURES, KubeApi, KubeRefusedError

_KINDS: Final = ("flags", "attributes", "instances")
NOT_THERE: Final = (403, 404)


class NodeFeatureObject:
    """One node's."""

    def __init__(self, api: KubeApi, *, node: str, namespace: str) -> None:
        self._api = api
        self._node = node
        self._namespace = namespace

    async def publish(self, read: ReadNode) -> None:
        """Make the object say what was read. Raises KubeError."""
        # Older definitions of the kind want all three.
        features = {**{kind: {} for kind in _KINDS}, **as_spec(read.features)}
        spec = {"features": features, "labels": dict(sorted(read.labels.items()))}
        live = await self._api.get(NODE_FEATURES, self._node, namespace=self._namespace)
        labels = {names.NFD_NODE_NAME_LABEL: self._node, names.PART_OF_LABEL: names.KGPU}
        if live is not None and live.get("spec") == spec and labels.items() <= _labels(live).items():
            return
        obj = {"metadata": {"name": self._node, "namespace": self._namespace, "labels": labels}, "spec": spec}
        await self._api.apply(NODE_FEATURES, obj, manager=names.FEATURES_FIELD_MANAGER)

    async def withdraw(self) -> None:
        """Delete the object if it is kgpu's. Raises KubeError."""
        try:
            live = await self._api.get(NODE_FEATURES, self._node, namespace=self._namespace)
            if live is not None and _labels(live).get(names.PART_OF_LABEL) == names.KGPU:
                await self._api.delete(NODE_FEATURES, self._node, namespace=self._namespace)
        except KubeRefusedError as refused:
            if refused.code not in NOT_THERE:  # without the right or the kind, kgpu has written none
                raise


def _labels(obj: dict[str, object]) -> dict[str, str]:
    metadata = obj.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}
