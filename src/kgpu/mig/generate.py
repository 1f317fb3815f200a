"""Which configs a node's GPUs can have: one for each of their profiles, by mig-parted's rules and names. Pure.

``all-disabled``, ``all-enabled``, ``all-balanced`` and ``all-<profile>`` with as many slices as a GPU takes. Counts are
those of kgpu's tables, so that the driver's mode and age do not matter. Where GPUs differ in their PCI ids, each entry
says which it is about, and GPUs that kgpu can't cut are in none of a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kgpu.formats.mig_config import ALL, VERSION
from kgpu.formats.mig_default_configs import config_name
from kgpu.formats.mig_geometry import Geometry, InstanceProfile
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.formats.pci_ids import packed_text
from kgpu.mig.survey import SurveyedGpu
from kgpu.mig.wanted import LayoutError

_BALANCED: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""By a GPU's compute slices: how many instances of so many slices share it evenly."""


def generate(gpus: Sequence[SurveyedGpu]) -> dict[str, Any]:
    """The file's content, as plain values. Raises LayoutError if no GPU has MIG."""
    known = {packed_text(found.device): found.gpu.geometry for found in gpus if found.gpu.geometry is not None}
    geometries = dict(sorted(known.items()))
    if not geometries:
        raise LayoutError(
            "no MIG-capable devices found on the system", "a GPU with MIG", "look at `nvidia-smi -q -d MIG`"
        )
    ids = {packed_text(found.device) for found in gpus if found.gpu.geometry is not None or found.problem is not None}
    filtered = len(ids) > 1
    named = {
        "all-disabled": [{"devices": ALL, "mig-enabled": False, "mig-devices": {}}],
        "all-enabled": [_entry({}, [])],
        "all-balanced": [
            _entry(slices, [model] if filtered else [])
            for model, geometry in geometries.items()
            if (slices := balanced(geometry))
        ],
    }
    counted: dict[str, dict[int, list[str]]] = {}
    for model, geometry in geometries.items():
        for row in geometry.rows:
            counted.setdefault(row.name, {}).setdefault(row.count, []).append(model)
    for name, by_count in sorted(counted.items()):
        named[config_name(name)] = [
            _entry({name: count}, models if filtered else []) for count, models in sorted(by_count.items())
        ]
    return {"version": VERSION, "mig-configs": {name: entries for name, entries in named.items() if entries}}


def left_out(gpus: Sequence[SurveyedGpu]) -> tuple[str, ...]:
    """Why GPUs are in none of the configs: those without MIG are not told of."""
    return tuple(found.problem.statement for found in gpus if found.problem is not None and found.gpu.geometry is None)


def balanced(geometry: Geometry) -> dict[str, int]:
    """The slices of ``all-balanced``; none where the GPU lacks a size. Of two profiles of one size the one counts that
    there can be more of.
    """
    plain: dict[int, InstanceProfile] = {}
    for row in geometry.rows:
        profile = parse_mig_profile(row.name)
        known = plain.get(row.slices)
        if not profile.attributes and not profile.negative_attributes and (known is None or row.count > known.count):
            plain[row.slices] = row
    shares = _BALANCED.get(geometry.slices, {})
    if not all(slices in plain for slices in shares):
        return {}
    return {plain[slices].name: count for slices, count in shares.items()}


def _entry(slices: Mapping[str, int], models: Sequence[str]) -> dict[str, Any]:
    only = {"device-filter": list(models)} if models else {}
    return {**only, "devices": ALL, "mig-enabled": True, "mig-devices": dict(slices)}
