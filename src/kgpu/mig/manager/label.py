"""What is kept of the own Node, and what it says of the label. Pure.

Who has written the label stands in the Node's managedFields. The operator of kgpu, and the one that it replaces, write
``all-disabled`` on every node whose GPUs have MIG: nobody has asked for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.mig_request import MAX_NAME, read_progress, read_report, read_request
from kgpu.formats.node_order import read_order
from kgpu.kube.nodes import label_owners
from kgpu.kube.port import Object
from kgpu.mig.manager.kind import LayoutLabel
from kgpu.mig.manager.model import MigLabelledNode

OPERATORS: Final = frozenset({names.OPERATOR_FIELD_MANAGER, "gpu-operator"})
_ANNOTATIONS: Final = (
    names.MIG_OPERATION_ANNOTATION, names.MIG_DEFAULT_ANNOTATION, names.OPERATION_ANNOTATION,
)  # fmt: skip


def node_part(node: Object, label: LayoutLabel) -> Object:
    """The parts of a Node that matter here; the rest of it changes all the time."""
    metadata = node["metadata"]
    kept: dict[str, Any] = {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata}
    for key, wanted in (
        ("labels", (label.key, label.state, *label.others)),
        ("annotations", (label.request, label.report, *_ANNOTATIONS)),
    ):
        given = metadata.get(key)
        if isinstance(given, dict):
            kept[key] = {name: given[name] for name in wanted if isinstance(given.get(name), str)}
    owners = sorted({manager for manager, _, keys in label_owners(node) if label.key in keys})
    fields: Object = {"f:metadata": {"f:labels": {f"f:{label.key}": {}}}}
    kept["managedFields"] = [{"manager": manager, "fieldsV1": fields} for manager in owners]
    return {"metadata": kept}


def read_view(node: Object | None, boot: str, label: LayoutLabel) -> MigLabelledNode:
    """What the Node says; nothing where there is none."""
    if node is None:
        return MigLabelledNode()
    metadata = node["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    owners = {manager for manager, _, keys in label_owners(node) if label.key in keys}
    order = read_order(annotations)
    return MigLabelledNode(
        uid=str(metadata.get("uid") or ""), version=str(metadata.get("resourceVersion") or ""),
        value=one_line(labels.get(label.key, ""), MAX_NAME),
        by_operator=bool(owners) and owners <= OPERATORS,
        default=annotations.get(names.MIG_DEFAULT_ANNOTATION, ""),
        others=tuple(f"{key} ({owner})" for key, owner in label.others.items() if labels.get(key)),
        state=labels.get(label.state, ""), request=read_request(annotations, label.request),
        progress=read_progress(annotations), report=read_report(annotations, label.report),
        order=order if order is not None and order.boot == boot else None,
    )  # fmt: skip
