"""Decides which earlier labels stay because their source could not be read this time.

Promises: a label is removed only if a successful reading or the configuration says so. A new reading always overrides
earlier labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.discovery import tables
from kgpu.discovery.tables import LabelledNode
from kgpu.discovery.values import legal
from kgpu.formats import names
from kgpu.hw.port import Accelerator, HardwareFinding, Problem

_SILENT: Final = frozenset({Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.MISSING})
_CANNOT_READ: Final = _SILENT | {Problem.UNREADABLE}
_VGPU_KEYS: Final = frozenset(
    {names.LABEL_VGPU_PRESENT, names.LABEL_VGPU_HOST_DRIVER_VERSION, names.LABEL_VGPU_HOST_DRIVER_BRANCH}
)


def retain(
    labels: Mapping[str, str], last: Mapping[str, str], view: LabelledNode, advice: list[Advice]
) -> dict[str, str]:
    """The new labels, plus those of ``last`` that could not be read, which advice then names."""
    new = dict(labels)
    # One GPU that is missing, or whose model or MIG devices are unknown, makes every count of the node doubtful.
    nameless = _has(view.inventory.findings, _CANNOT_READ)
    product = view.vendor.resource + names.LABEL_PRODUCT
    unsure = product in last and (nameless or any(map(_unsure, view.gpus)))
    if unsure:
        new = {key: value for key, value in new.items() if not _in_group(key, view)}
    kept = {key: value for key, value in last.items() if key not in new and _stays(key, new, last, view, unsure=unsure)}
    if kept:
        advice.append(_told(kept, view))
    return new | kept


def _stays(key: str, new: Mapping[str, str], last: Mapping[str, str], view: LabelledNode, *, unsure: bool) -> bool:
    if key in tables.CONFIGURED_KEYS or view.settings.leaves_out(key):
        return False
    trouble = bool(view.inventory.findings) or any(gpu.findings or not legal(gpu.name) for gpu in view.gpus)
    if _in_group(key, view):
        # A value of another product would be wrong and not just old.
        product = view.vendor.resource + names.LABEL_PRODUCT
        same_product = key in tables.group_keys(view.vendor.resource) and new.get(product) == last.get(product)
        return unsure or (trouble and same_product)
    if key in _VGPU_KEYS:
        return view.facts.vgpu_present is None
    if not view.gpus:
        return False
    return (
        trouble or key == names.LABEL_GPU_MACHINE or (key.startswith(names.LABEL_CUDA_DRIVER) and view.driver is None)
    )


def never_read(gpu: Accelerator) -> bool:
    """True if the driver has never answered for this GPU, so that not even its MIG mode is known."""
    return _has(gpu.findings, _SILENT) and gpu.memory_mib is None and gpu.compute_capability is None


def _unsure(gpu: Accelerator) -> bool:
    no_slices = gpu.mig_enabled and not gpu.partitions and _has(gpu.findings, _CANNOT_READ)
    return not legal(gpu.name) or never_read(gpu) or no_slices


def _has(findings: Iterable[HardwareFinding], problems: frozenset[Problem]) -> bool:
    return any(finding.problem in problems for finding in findings)


def _in_group(key: str, view: LabelledNode) -> bool:
    partitions = view.vendor.partition_resource("")
    return key in tables.group_keys(view.vendor.resource) or key.startswith((partitions, names.KGPU_LABEL_MODEL_PREFIX))


def _told(kept: Mapping[str, str], view: LabelledNode) -> Advice:
    findings = [*view.inventory.findings, *(finding for gpu in view.gpus for finding in gpu.findings)]
    return Advice(
        subject="",
        what=f"{len(kept)} labels keep their last values: {', '.join(sorted(kept))}",
        why="they could not be read this time",
        evidence=tuple(finding.sentence for finding in findings),
        severity=Severity.WARNING,
        reason="LabelsKept",
    )
