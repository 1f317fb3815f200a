"""Turns inventory, settings and facts into the node's labels, with reasons. Pure and deterministic.

Promises: every value is legal; the same input gives the same labels, also on nodes with several models; a published
label stays while its source can't be read. Only a successful reading removes labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError, UserError
from kgpu.discovery import tables
from kgpu.discovery.model import LabelPlan, LabelSettings, MigStrategy, NodeFacts, SharingInForce, SharingStrategy
from kgpu.discovery.retain import never_read, retain
from kgpu.discovery.tables import LabelledNode, LabelRow, ResourceGroup
from kgpu.discovery.values import legal
from kgpu.formats import names
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.hw.vendor import Cutting, Vendor, vendor_of

Source = TypeVar("Source")

# The longest suffix of a model's key is .compute.major; the name part of a key has at most 63 characters.
_MODEL_ROOM: Final = 63 - len("gpu.") - len(names.LABEL_COMPUTE_MAJOR)


@dataclass(frozen=True, slots=True)
class ModelGpus:
    """The GPUs of one model, in the driver's order; ``full`` are those without MIG."""

    name: str
    gpus: tuple[Accelerator, ...]

    @property
    def full(self) -> tuple[Accelerator, ...]:
        return tuple(gpu for gpu in self.gpus if not gpu.mig_enabled)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The sort key: a model with full GPUs first, then the one with most GPUs, then the first in the driver's
        order.
        """
        return (not self.full, -len(self.gpus), self.gpus[0].index)


def plan(
    inventory: Inventory | None,
    settings: LabelSettings,
    facts: NodeFacts,
    *,
    timestamp: int | None = None,
    previous: Mapping[str, str] | None = None,
    error: UserError | None = None,
) -> LabelPlan:
    """Decide the node's labels.

    ``inventory`` is None if the reading failed as a whole, with the ``error``. ``previous`` are the labels that were
    published last. ``timestamp`` is when the configuration was loaded, in Unix seconds; None leaves it out.
    """
    last = dict(previous or {})
    if inventory is None:
        return LabelPlan(labels=last, advice=(_kept_all(error, bool(last)),), fresh=False)
    vendor = vendor_of(inventory.vendor)
    listed = sorted(inventory.accelerators, key=lambda gpu: (gpu.index, gpu.uuid))
    gpus = tuple(gpu for gpu in listed if gpu.name not in vendor.left_out)
    if not gpus and inventory.findings and last:
        finding = inventory.findings[0]
        broken = UserError(finding.sentence, finding.expected, finding.remedy)
        return LabelPlan(labels=last, advice=(_kept_all(broken, True),), fresh=False)

    advice: list[Advice] = []
    settings = _with_usable_sharing(settings, gpus, advice)
    node_labels = tables.node_labels(vendor.name)
    view = LabelledNode(inventory=inventory, gpus=gpus, settings=settings, facts=facts, timestamp=timestamp)
    if not gpus:
        labels = _run(node_labels.always, view)
        advice.append(Advice(subject="", what="no accelerator labels", why="the driver lists no accelerator"))
    else:
        labels = _run(node_labels.rows, view)
        for group in _groups(gpus, settings, vendor, advice):
            labels |= _run(tables.GROUP_ROWS, group, prefix=group.resource)
        labels |= _model_labels(_models(gpus), vendor)
        labels |= _further.get(vendor.name, _none)(view)
        labels |= _rdma_labels(facts)
        if node_labels.rows:
            _note_node_oddities(view, advice)
    labels = retain(labels, last, view, advice)
    if gpus:
        labels = {**node_labels.fallbacks, **labels}
    return LabelPlan(labels=dict(sorted(labels.items())), advice=tuple(advice))


def _none(_view: LabelledNode) -> Mapping[str, str]:
    return {}


def _amd(view: LabelledNode) -> Mapping[str, str]:
    from kgpu.discovery.amd_labels import amd_labels  # loaded only where there are such GPUs

    return amd_labels(view)


def _gaudi(view: LabelledNode) -> Mapping[str, str]:
    from kgpu.discovery.card_labels import gaudi_labels

    return gaudi_labels(view)


def _intel(view: LabelledNode) -> Mapping[str, str]:
    from kgpu.discovery.card_labels import intel_labels

    return intel_labels(view)


_further: Final[Mapping[str, Callable[[LabelledNode], Mapping[str, str]]]] = {
    names.AMD: _amd,
    names.GAUDI: _gaudi,
    names.INTEL: _intel,
}
"""A vendor's labels that have values in their keys."""


def _run(rows: Iterable[LabelRow[Source]], source: Source, prefix: str = "") -> dict[str, str]:
    labels = ((prefix + row.key, row.value(source)) for row in rows)
    return {key: value for key, value in labels if value is not None}


def _models(gpus: Iterable[Accelerator]) -> list[ModelGpus]:
    """The identified GPUs by model, beginning with the model that describes the node."""
    by_name: dict[str, list[Accelerator]] = {}
    for gpu in gpus:
        if legal(gpu.name):
            by_name.setdefault(gpu.name, []).append(gpu)
    return sorted((ModelGpus(name, tuple(members)) for name, members in by_name.items()), key=lambda model: model.rank)


def _groups(
    gpus: Sequence[Accelerator], settings: LabelSettings, vendor: Vendor, advice: list[Advice]
) -> list[ResourceGroup]:
    """The resource groups; later ones override earlier ones key by key."""
    models = _models(gpus)
    if not models:
        return []
    if vendor.cutting is Cutting.BY_DRIVER:
        return _by_driver(models, settings, vendor, advice)
    if len(models) > 1:
        advice.append(_several_models(models, vendor.resource))
    groups = [_gpu_group(models[0], settings.sharing, vendor.resource)]
    if settings.mig_strategy is MigStrategy.SINGLE:
        groups += _single(gpus, models[0], settings.sharing, vendor.resource, advice)
    elif settings.mig_strategy is MigStrategy.MIXED:
        groups += _mixed(gpus, settings.sharing, vendor, advice)
    return groups


def _by_driver(
    models: Sequence[ModelGpus], settings: LabelSettings, vendor: Vendor, advice: list[Advice]
) -> list[ResourceGroup]:
    """A group for each driver's resource, of the GPUs that it drives."""
    groups = []
    for mode in sorted({gpu.mode for model in models for gpu in model.gpus}):
        resource = vendor.partition_resource(mode) if mode else vendor.resource
        driven = _models(gpu for model in models for gpu in model.gpus if gpu.mode == mode)
        if len(driven) > 1:
            advice.append(_several_models(driven, resource))
        groups.append(_gpu_group(driven[0], settings.sharing, resource))
    return groups


def _gpu_group(model: ModelGpus, sharing: SharingInForce, resource: str) -> ResourceGroup:
    shown = model.full or model.gpus
    applies = bool(model.full)
    return ResourceGroup(
        resource=resource,
        model=model.name,
        count=len(model.gpus),
        sharing=sharing.kind if applies else None,
        shared=sharing.of(resource) if applies else None,
        memory_mib=next((gpu.memory_mib for gpu in shown if gpu.memory_mib), None),
        compute=_compute(shown),
    )


def _compute(gpus: Iterable[Accelerator]) -> tuple[int, int] | None:
    return next((gpu.compute_capability for gpu in gpus if gpu.compute_capability), None)


def _single(
    gpus: Sequence[Accelerator], model: ModelGpus, sharing: SharingInForce, resource: str, advice: list[Advice]
) -> list[ResourceGroup]:
    known = [gpu for gpu in gpus if not never_read(gpu)]
    enabled = [gpu for gpu in known if gpu.mig_enabled]
    if not enabled:
        return []
    slices = _slices(enabled)
    by_profile = _by_profile(slices, advice)
    reasons = [
        text
        for wrong, text in (
            (any(not gpu.partitions for gpu in enabled), "at least one MIG device is enabled but empty"),
            (len(enabled) < len(known), "devices with MIG enabled and disabled detected"),
            (len(by_profile) > 1, "more than one MIG device type present on node"),
            (bool(slices) and not by_profile, "no MIG device has a profile that could be read"),
        )
        if wrong
    ]
    if reasons:
        advice.append(_invalid_layout(reasons, resource))
        first = next((gpu.name for gpu in gpus if legal(gpu.name)), model.name)
        return [ResourceGroup(resource=resource, model=first, count=0, kind="INVALID", broken=True)]
    ((form, members),) = by_profile.items()
    return [replace(_mig_group(resource, form, members, sharing), compute=_compute(model.gpus))]


def _mixed(
    gpus: Sequence[Accelerator], sharing: SharingInForce, vendor: Vendor, advice: list[Advice]
) -> list[ResourceGroup]:
    by_profile = _by_profile(_slices([gpu for gpu in gpus if gpu.mig_enabled]), advice)
    return [_mig_group(vendor.partition_resource(form), form, members, sharing) for form, members in by_profile.items()]


Slice = tuple[Accelerator, Partition]


def _slices(gpus: Iterable[Accelerator]) -> list[Slice]:
    return [(gpu, partition) for gpu in gpus for partition in gpu.partitions]


def _by_profile(slices: Iterable[Slice], advice: list[Advice]) -> dict[str, list[Slice]]:
    """MIG devices by their profile's resource form; one without a valid profile is left out, with advice."""
    by_profile: dict[str, list[Slice]] = {}
    for gpu, partition in slices:
        try:
            form = parse_mig_profile(partition.profile).resource_form
        except ConfigError as error:
            advice.append(Advice.from_error(error, subject=partition.uuid, reason="UnknownMigProfile"))
        else:
            by_profile.setdefault(form, []).append((gpu, partition))
    return by_profile


def _mig_group(resource: str, form: str, members: Sequence[Slice], sharing: SharingInForce) -> ResourceGroup:
    gpu, partition = members[0]
    return ResourceGroup(
        resource=resource,
        model=gpu.name,
        count=len(members),
        kind=form,
        sharing=sharing.kind,
        shared=sharing.of(resource),
        partition=partition,
    )


def _model_labels(models: Sequence[ModelGpus], vendor: Vendor) -> dict[str, str]:
    """Labels of kgpu itself for nodes with several models; empty on other nodes."""
    if len(models) < 2:
        return {}
    labels = {
        names.KGPU_LABEL_GPU_MODELS: str(len(models)),
        names.KGPU_LABEL_GPU_TOTAL: str(sum(len(model.gpus) for model in models)),
    }
    for model in models:
        key = base = legal(model.name[:_MODEL_ROOM])
        copies = 1
        while names.KGPU_LABEL_MODEL_PREFIX + key + names.LABEL_COUNT in labels:
            copies += 1
            key = f"{base[: _MODEL_ROOM - 3]}-{copies}"
        group = _gpu_group(model, SharingInForce(), vendor.resource)
        labels |= _run(tables.MODEL_ROWS, group, prefix=names.KGPU_LABEL_MODEL_PREFIX + key)
    return labels


def _rdma_labels(facts: NodeFacts) -> dict[str, str]:
    """Labels of kgpu itself for nodes that reach others by RDMA."""
    if facts.rdma is None:
        return {}
    return {
        names.KGPU_LABEL_RDMA_LINK: facts.rdma.link_layer,
        names.KGPU_LABEL_RDMA_RATE: str(facts.rdma.gbps),
        names.KGPU_LABEL_RDMA_PORTS: str(facts.rdma.ports),
    }


def _with_usable_sharing(settings: LabelSettings, gpus: Iterable[Accelerator], advice: list[Advice]) -> LabelSettings:
    """The settings without sharing if MPS is configured with MIG, which it can't share; other labels stay."""
    if settings.sharing.kind is not SharingStrategy.MPS or not any(gpu.mig_enabled for gpu in gpus):
        return settings
    advice.append(
        Advice(
            subject="",
            what="labels show no sharing",
            why="MPS is configured but MIG is enabled, and MPS can't share MIG devices",
            severity=Severity.WARNING,
            remedy="turn MIG off on this node, or choose a configuration without sharing.mps for it",
            reason="MpsWithMig",
        )
    )
    return replace(settings, sharing=SharingInForce())


def _note_node_oddities(view: LabelledNode, advice: list[Advice]) -> None:
    if len(view.cliques) > 1:
        advice.append(
            Advice(
                subject="",
                what=f"no label {names.LABEL_GPU_CLIQUE}",
                why="the GPUs of this node are in different NVLink cliques",
                evidence=tuple(sorted(view.cliques)),
                severity=Severity.WARNING,
                remedy="check the fabric manager's partitions",
                reason="SeveralCliques",
            )
        )
    if view.driver is None:
        advice.append(
            Advice(
                subject="",
                what=f"no new {names.LABEL_CUDA_DRIVER_VERSION} labels",
                why=f'the driver version "{view.inventory.driver_version}" is not X.Y or X.Y.Z',
                severity=Severity.WARNING,
                reason="OddDriverVersion",
            )
        )


def _several_models(models: Sequence[ModelGpus], resource: str) -> Advice:
    return Advice(
        subject="",
        what=f'the {resource}.* labels describe "{models[0].name}"',
        why="the node has several models and the keys have room for one: the model that has GPUs without MIG, "
        "of those the one with most GPUs, of those the first",
        evidence=tuple(f"{len(model.gpus)} x {model.name}" for model in models),
        remedy=f"select by {names.KGPU_LABEL_MODEL_PREFIX}<model>{names.LABEL_COUNT} where the model matters",
        reason="SeveralModels",
    )


def _invalid_layout(reasons: Sequence[str], resource: str) -> Advice:
    return Advice(
        subject=resource,
        what="the product is labelled MIG-INVALID with count 0",
        why="the MIG layout does not fit strategy single: " + "; ".join(reasons),
        severity=Severity.WARNING,
        remedy="give every GPU the same MIG layout, or use strategy mixed",
        reason="InvalidMigLayout",
    )


def _kept_all(error: UserError | None, had_labels: bool) -> Advice:
    return Advice(
        subject="",
        what="the labels stay as they were" if had_labels else "no labels are written",
        why=error.what if error else "the accelerators could not be read",
        evidence=(f"expected {error.expected}",) if error else (),
        severity=Severity.WARNING,
        remedy=error.remedy if error else "",
        reason="ReadFailed",
    )
