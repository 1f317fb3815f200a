"""The device plugin's configuration for this node, from a node label and a ConfigMap; both are followed.

Promises: a change of the label, or of the text behind it, is news at once; an API server that is away changes nothing;
nothing is chosen before both node and ConfigMap are known, so that a start never applies a wrong configuration first.
Memory stays small: of the Node only its labels are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kgpu.base.clock import Clock
from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.waits import first_of
from kgpu.formats.config_choice import ConfigText, Fallback, choose_text, problem_text
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.port import CONFIG_MAPS, NODES, KubeApi, Object, Selector


class NodeConfigSource:
    """A configuration source. ``run`` must run beside those who wait in ``next``; several may wait."""

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        namespace: str,
        config_map: str,
        label: str = DEVICE_PLUGIN_CONFIG_LABEL,
        default: str = "",
        fallbacks: Sequence[Fallback] = (Fallback.NAMED, Fallback.SINGLE),
        clock: Clock | None = None,
        followed: Informer | None = None,
    ) -> None:
        """``followed`` is an informer of this Node that the caller runs, so that it is not watched twice."""
        self._runs_node = followed is None
        self._node = followed or Informer(
            api, Scope(NODES, selector=Selector.named(node)), clock=clock, project=labels_only
        )
        self._map = Informer(api, Scope(CONFIG_MAPS, namespace, Selector.named(config_map)), clock=clock)
        self._key = (namespace, config_map)
        self._name = node
        self._label = label
        self._default = default
        self._fallbacks = tuple(fallbacks)

    async def run(self) -> None:
        """Follow node and ConfigMap until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._runs_node:
                group.create_task(self._node.run())
            group.create_task(self._map.run())

    @property
    def error(self) -> KubeError | None:
        """Why the configuration may be out of date; None while both are followed."""
        return self._node.error or self._map.error

    def current(self) -> ConfigText | None:
        """The configuration in force, None while node and ConfigMap have never been read."""
        if not (self._node.synced.is_set() and self._map.synced.is_set()):
            return None
        where = f"ConfigMap {self._key[0]}/{self._key[1]}"
        config_map = self._map.objects.get(self._key)
        if config_map is None:
            return problem_text(where, self._no_config_map(where))
        return choose_text(
            _texts(config_map),
            where,
            label=label_value(self._node, self._name, self._label),
            default=self._default,
            fallbacks=self._fallbacks,
        )

    async def next(self, after: Any) -> ConfigText:
        """The configuration in force if it differs from ``after`` (None: in any case), else wait until it does."""
        while True:
            seen = (self._node.revision, self._map.revision)
            current = self.current()
            if current is not None and current != after:
                return current
            await first_of(self._node.changed(seen[0]), self._map.changed(seen[1]))

    def _no_config_map(self, where: str) -> ConfigError:
        return ConfigError(
            f"{where} does not exist",
            "a ConfigMap whose keys are configuration names and whose values are config files",
            f"create it, or run without a ConfigMap; node {self._name} keeps its last configuration meanwhile",
        )


def _texts(config_map: Object) -> dict[str, str]:
    data = config_map.get("data")
    return {str(name): str(text) for name, text in data.items()} if isinstance(data, dict) else {}


def label_value(nodes: Informer, node: str, label: str) -> str:
    """What a Node's label says, "" where it is not there, or the Node is not."""
    labels = (nodes.objects.get(("", node)) or {}).get("metadata", {}).get("labels") or {}
    return str(labels.get(label) or "").strip()


def labels_only(node: Object) -> Object:
    """What an informer keeps of a Node whose labels matter: its images and conditions change all the time."""
    metadata = node["metadata"]
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata}
    return {"metadata": kept}
