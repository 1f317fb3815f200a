"""Which series there are, before their values: each exported device, its fields' scopes, and one variant per user.

With MIG on, a GPU and its instances are targets of their own: what the whole GPU has (power, temperature) is told once,
what an instance has (memory, activity) once per instance, and nothing twice, so that sums are right. ``mig_copies``
gives every instance the GPU's values instead, as the replaced exporter does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kgpu.exporter.fields import FieldScope
from kgpu.exporter.holders import Holder
from kgpu.exporter.labels import Pairs, cpu_labels, device_labels, joined, link_labels
from kgpu.exporter.model import PlanInput, PodFacts, PodKey, Unit
from kgpu.exporter.settings import ExporterSettings, Pods, Virtual
from kgpu.hw.port import Accelerator

COPY_LABEL = "shared_copy"
"""On all but one series of a shared device: ``sum(X{shared_copy=""})`` counts each device once."""

_WHOLE = frozenset({FieldScope.GPU, FieldScope.INSTANCE, FieldScope.EITHER})
_PARENT = frozenset({FieldScope.GPU, FieldScope.EITHER})
_SLICE = frozenset({FieldScope.INSTANCE, FieldScope.EITHER})
_NO_POD = PodFacts()


@dataclass(frozen=True, slots=True)
class Variant:
    """One series of each of a target's fields: its user (None for the device's own), and labels after the device's."""

    holder: Holder | None
    labels: Pairs
    pod_labels: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesTarget:
    """A device with series of its own. ``labels`` are its first labels, ``holders`` all who use it.

    ``own_values``: a holder's series have what its own processes use.
    """

    unit: Unit
    labels: Pairs
    scopes: frozenset[FieldScope]
    gpu: Accelerator | None = None
    holders: tuple[Holder, ...] = ()
    variants: tuple[Variant, ...] = (Variant(None, ()),)
    own_values: bool = False


class TargetInputs(NamedTuple):
    """The input of every target."""

    look: PlanInput
    held: Mapping[Unit, tuple[Holder, ...]]
    settings: ExporterSettings


def targets(look: PlanInput, held: Mapping[Unit, tuple[Holder, ...]], settings: ExporterSettings) -> list[SeriesTarget]:
    """Every target in the driver's order, then links, then CPUs."""
    inputs = TargetInputs(look, held, settings)
    chosen: list[SeriesTarget] = []
    position = 0
    for gpu in look.inventory.accelerators:
        slices = _instances(gpu) if gpu.mig_enabled else {}
        wanted = [gi for number, gi in enumerate(slices, position) if settings.devices.instance(number)]
        position += len(slices)
        if settings.devices.gpu(gpu.index):
            chosen.append(_target(Unit(gpu.uuid), gpu, "", _gpu_scopes(slices, wanted, settings), inputs))
        scopes = _SLICE | {FieldScope.GPU} if settings.mig_copies else _SLICE
        chosen += [_target(Unit(gpu.uuid, gi), gpu, slices[gi], scopes, inputs) for gi in wanted]
    gpus = {gpu.uuid: gpu for gpu in look.inventory.accelerators if settings.devices.gpu(gpu.index)}
    for unit in look.now.values:
        if unit.link is not None and unit.uuid in gpus:
            labels = link_labels(settings.style, gpus[unit.uuid], unit.link)
            chosen.append(SeriesTarget(unit=unit, labels=labels, scopes=frozenset({FieldScope.LINK})))
    chosen += [
        SeriesTarget(unit=unit, labels=cpu_labels(settings.style, unit.cpu), scopes=frozenset({FieldScope.CPU}))
        for unit in look.now.values
        if unit.cpu is not None and settings.cpus.gpu(unit.cpu)
    ]
    return chosen


def _instances(gpu: Accelerator) -> dict[int, str]:
    """Profile by GPU instance; compute instances of one GPU instance share its memory and its counters."""
    profiles: dict[int, str] = {}
    for partition in gpu.partitions:
        profiles.setdefault(partition.gpu_instance, partition.profile)
    return dict(sorted(profiles.items()))


def _gpu_scopes(slices: Mapping[int, str], wanted: Iterable[int], settings: ExporterSettings) -> frozenset[FieldScope]:
    if not slices or not list(wanted):
        return _WHOLE
    return frozenset({FieldScope.EITHER}) if settings.mig_copies else _PARENT


def _target(
    unit: Unit,
    gpu: Accelerator,
    profile: str,
    scopes: frozenset[FieldScope],
    inputs: TargetInputs,
) -> SeriesTarget:
    look, held, settings = inputs.look, inputs.held, inputs.settings
    # A GPU whose instances are exported is used by those who use the instances.
    users = held.get(unit, ()) if settings.kubernetes else ()
    labels = device_labels(settings.style, gpu, profile, unit.gpu_instance)
    virtual = _is_virtual(users, settings)
    variants = _variants(users, look, settings, virtual=virtual)
    jobs = look.jobs.get(unit, ())
    if jobs:
        variants = tuple(
            Variant(variant.holder, (*variant.labels, ("hpc_job", job)), variant.pod_labels)
            for variant in variants
            for job in jobs
        )
    return SeriesTarget(
        unit=unit, gpu=gpu, labels=labels, scopes=scopes, holders=users, variants=variants, own_values=virtual
    )  # fmt: skip


def _is_virtual(users: tuple[Holder, ...], settings: ExporterSettings) -> bool:
    if settings.virtual_gpus is Virtual.AUTO:
        return any(holder.replica for holder in users)
    return settings.virtual_gpus is Virtual.ALWAYS


def _variants(
    users: tuple[Holder, ...], look: PlanInput, settings: ExporterSettings, *, virtual: bool
) -> tuple[Variant, ...]:
    nobody = Variant(None, ())
    if not users or settings.pods is Pods.JOIN:
        return (nobody,)
    if settings.virtual_gpus is not Virtual.ALWAYS:
        # A container's shares of one device are one series, and so are its claims on it.
        first: dict[PodKey, Holder] = {}
        for holder in users:
            first.setdefault(holder.key, holder)
        users = tuple(first.values())
    variants = [nobody] if virtual else []
    for holder in users:
        copy = ((COPY_LABEL, "1"),) if variants else ()
        variants.append(
            Variant(
                holder,
                (*holder_labels(holder, look, settings, vgpu=virtual), *copy),
                own_labels(holder, look, settings),
            )
        )
    return tuple(variants)


def holder_labels(holder: Holder, look: PlanInput, settings: ExporterSettings, *, vgpu: bool = False) -> Pairs:
    """A holder's labels: pod, namespace, container; uid and share where settings ask for them. ``vgpu``: always the
    share.
    """
    labels = settings.style.pod(holder.namespace, holder.pod, holder.container)
    uid = look.pods.get((holder.namespace, holder.pod), _NO_POD).uid
    always = settings.virtual_gpus is Virtual.ALWAYS
    if uid and (settings.pod_uid or always) and "pod_uid" not in settings.without:
        labels = (*labels, ("pod_uid", uid))
    if holder.replica and (always or vgpu):
        labels = (*labels, ("vgpu", holder.replica))
    return (*labels, *(pair for pair in holder.claim if pair[0] not in settings.without))


def own_labels(holder: Holder, look: PlanInput, settings: ExporterSettings) -> Pairs:
    """The pod's own labels that are exported."""
    if settings.pod_labels is None:
        return ()
    facts = look.pods.get((holder.namespace, holder.pod), _NO_POD)
    labels = settings.pod_labels.of(facts.labels, settings.style)
    return tuple(pair for pair in labels if pair[0] not in settings.without)


def series_labels(target: SeriesTarget, fixed: Pairs, variant: Variant, more: Pairs = ()) -> Pairs:
    """All labels of one series: the device's, the label fields, then everything else by name."""
    first = joined(target.labels, fixed)
    whole = joined(first, (*variant.labels, *more), variant.pod_labels)
    return (*first, *sorted(whole[len(first) :]))
