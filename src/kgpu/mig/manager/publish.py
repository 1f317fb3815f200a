"""Writes to the cluster what has become of the label: on the own Node, and the generated configs as a ConfigMap."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.clock import Clock, SystemClock
from kgpu.formats import names
from kgpu.formats.mig_request import MigReport, MigRequest, encode
from kgpu.kube.port import CONFIG_MAPS, NODES, KubeApi, KubeRefusedError, Object
from kgpu.mig.manager.kind import LayoutLabel
from kgpu.mig.manager.model import MigLabelledNode

log = logging.getLogger(__name__)

SETTLE: Final = 2.0
"""Seconds until what the Node does not show counts as overwritten; twice as long each time that it is again."""
LONGEST_SETTLE: Final = 300.0
CONFIG_KEY: Final = "config.yaml"
COMPONENT: Final = "nvidia-mig-manager"


@dataclass(frozen=True, slots=True)
class NodeWords:
    """What the Node is to say; nothing without a report."""

    report: MigReport | None = None
    request: MigRequest | None = None

    def stand_on(self, view: MigLabelledNode, label: LayoutLabel) -> bool:
        """Whether the Node says so already."""
        state = label.state_value(self.report.state) if self.report is not None else ""
        return (view.state, view.report, view.request) == (state, self.report, self.request)


@dataclass(slots=True, kw_only=True)
class NodeWriter:
    """Keeps the Node's label of the state, the report and the request."""

    api: Callable[[], KubeApi]
    node: str
    label: LayoutLabel
    clock: Clock = field(default_factory=SystemClock)
    _written: NodeWords | None = None
    _at: float = 0.0
    _settle: float = SETTLE

    def due(self, view: MigLabelledNode, words: NodeWords) -> float | None:
        """Seconds until the Node is to be written, None where it says so already."""
        if not view.uid or words.stand_on(view, self.label):
            return None
        if words != self._written:
            return 0.0
        return max(0.0, self._at + self._settle - self.clock.monotonic())

    async def write(self, view: MigLabelledNode, words: NodeWords) -> Object:
        """Write; returns the Node. Raises KubeError."""
        again = words == self._written
        self._settle = min(self._settle * 2, LONGEST_SETTLE) if again else SETTLE
        metadata: Object = {"name": self.node, "uid": view.uid}
        keys = (self.label.report, self.label.request)
        if words.report is None:  # also what another program has left
            nothing: Object = {
                "uid": view.uid, "labels": {self.label.state: None}, "annotations": dict.fromkeys(keys),
            }  # fmt: skip
            made = await self.api().patch(NODES, self.node, {"metadata": nothing})
        else:
            told = {keys[0]: encode(words.report), **({keys[1]: encode(words.request)} if words.request else {})}
            state = self.label.state_value(words.report.state)
            metadata |= {"labels": {self.label.state: state}, "annotations": told}
            made = await self.api().apply(NODES, {"metadata": metadata}, manager=self.label.manager)
        self._written, self._at = words, self.clock.monotonic()
        return made


@dataclass(slots=True, kw_only=True)
class ConfigMapWriter:
    """Keeps the ConfigMap ``<node>-mig-config`` with the configs that were generated for this node, for people and for
    those who plan for it. Without the right to it there is none. It goes with the Node.
    """

    api: Callable[[], KubeApi]
    node: str
    namespace: str
    _written: str = ""
    _refused: bool = False

    async def write(self, text: str, uid: str) -> None:
        """Write it unless it was what was written last; the Node of this ``uid`` owns it. Raises KubeError."""
        if not self.namespace or self._refused or text == self._written:
            return
        name = names.MIG_NODE_MAP.format(node=self.node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}
        labels = {names.COMPONENT_LABEL: COMPONENT, names.MIG_NODE_LABEL: self.node[:63]}
        metadata: Object = {
            "name": name, "namespace": self.namespace, "labels": labels, "ownerReferences": [owner] if uid else [],
        }  # fmt: skip
        try:
            await self.api().apply(
                CONFIG_MAPS, {"metadata": metadata, "data": {CONFIG_KEY: text}}, manager=names.MIG_FIELD_MANAGER
            )
        except KubeRefusedError as refused:
            if refused.code not in {401, 403}:
                raise
            self._refused = True
            log.info("the generated configs are not published: %s", refused.what)
            return
        self._written = text


async def withdraw(api: KubeApi, node: str, manager: str = names.MIG_FIELD_MANAGER) -> None:
    """Remove all that was written on the Node by this field manager. Raises KubeError."""
    await api.apply(NODES, {"metadata": {"name": node}}, manager=manager)
