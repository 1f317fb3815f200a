"""Writes how a node's GPUs are cut as a config that ``apply`` takes. Pure.

GPUs that are cut alike share an entry; ``devices`` and ``device-filter`` say no more than is needed, as in mig-parted.
What the format can't say, such as an instance without a compute instance, is told as a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kgpu.formats.mig_config import ALL, VERSION, MigEntry
from kgpu.formats.mig_geometry import InstanceProfile
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.formats.pci_ids import packed_text
from kgpu.mig.model import MigGpu, WantedInstance, layout
from kgpu.mig.survey import SurveyedGpu
from kgpu.mig.wanted import LayoutError, wanted_gpu

LABEL: Final = "current"

Cut: TypeAlias = tuple[bool, tuple[tuple[str, int], ...]]
"""Whether MIG is on, and the slices with their counts."""


def export(gpus: Sequence[SurveyedGpu], label: str = LABEL) -> dict[str, Any]:
    """The file's content, as plain values. Raises a GPU's own problem, LayoutError for a node without GPUs."""
    if not gpus:
        raise LayoutError("the node has no GPUs", "GPUs to write a config of", "look at `nvidia-smi -L`")
    groups: dict[Cut, list[SurveyedGpu]] = {}
    for found in gpus:
        if found.problem is not None:
            raise found.problem
        groups.setdefault(cut_of(found.gpu), []).append(found)
    entries = [_entry(cut, group, gpus, alone=len(groups) == 1) for cut, group in groups.items()]
    return {"version": VERSION, "mig-configs": {label: entries}}


def unsaid(gpus: Sequence[SurveyedGpu]) -> Iterator[str]:
    """What ``export`` can't say of these GPUs."""
    for found in gpus:
        if found.gpu.geometry is None or not found.gpu.enabled:
            continue
        slices = tuple((parse_mig_profile(name), number) for name, number in cut_of(found.gpu)[1])
        wanted = wanted_gpu(MigEntry(enabled=True, profiles=slices), found.gpu.geometry, found.name)
        if Counter(map(_shape, wanted.instances)) != Counter(map(_shape, layout(found.gpu).elements())):
            orphans = sum(not one.compute for one in found.gpu.instances)
            what = f"{orphans} without a compute instance" if orphans else "compute instances spread otherwise"
            yield f"{found.name} has GPU instances that no config can say: {what}; applying this config changes it"


def cut_of(gpu: MigGpu) -> Cut:
    """How the GPU is cut, largest slices first."""
    if not gpu.enabled:
        return False, ()
    counted = Counter(
        one.profile.name if ci.profile.slices == one.profile.slices else f"{ci.profile.slices}c.{one.profile.name}"
        for one in gpu.instances
        for ci in one.compute
    )
    return True, tuple(sorted(counted.items(), key=lambda one: (-parse_mig_profile(one[0]).g, one[0])))


def _shape(instance: WantedInstance) -> tuple[InstanceProfile, tuple[int, ...]]:
    """What a config can tell apart: of two compute instances of the same slices it names neither."""
    return instance.profile, tuple(sorted(one.slices for one in instance.compute))


def _entry(cut: Cut, group: Sequence[SurveyedGpu], gpus: Sequence[SurveyedGpu], *, alone: bool) -> Mapping[str, Any]:
    enabled, slices = cut
    models = list(dict.fromkeys(found.device for found in group))
    with_filter = not alone and len({found.device for found in gpus}) > 1
    meant = [found for found in gpus if not with_filter or found.device in models]
    filters = [packed_text(model) for model in models]
    entry: dict[str, Any] = {}
    if with_filter:
        entry["device-filter"] = filters[0] if len(filters) == 1 else filters
    entry["devices"] = ALL if len(meant) == len(group) else [found.gpu.index for found in group]
    entry["mig-enabled"] = enabled
    if enabled:
        entry["mig-devices"] = dict(slices)
    return entry
