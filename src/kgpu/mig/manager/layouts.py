"""Layouts of single GPUs, as requests and orders have them, from plans and back to plans. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.formats.mig_request import MigLayout, MigRequest, encode, request
from kgpu.mig.manager.kind import LayoutPlan
from kgpu.mig.manager.model import MigWish
from kgpu.mig.model import WantedGpu
from kgpu.mig.node_plan import PlannedGpu, plan_node
from kgpu.mig.survey import SurveyedGpu
from kgpu.mig.wanted import LayoutError


def layout_of(uuid: str, wanted: WantedGpu) -> MigLayout:
    """The layout that a plan aims at."""
    counted = Counter(
        one.profile.name if compute.slices == one.profile.slices else f"{compute.slices}c.{one.profile.name}"
        for one in wanted.instances
        for compute in one.compute
    )
    return MigLayout(gpu=uuid, enabled=wanted.enabled, devices=dict(sorted(counted.items())))


def plan_layouts(gpus: Sequence[SurveyedGpu], layouts: Iterable[MigLayout]) -> tuple[PlannedGpu, ...]:
    """A plan for each of the layouts. Raises LayoutError for a GPU that the node lacks and a layout that does not fit,
    ConfigError for a profile that is none, and a GPU's own problem.
    """
    known = {found.uuid: found for found in gpus if found.uuid}
    plans: list[PlannedGpu] = []
    for layout in layouts:
        found = known.get(layout.gpu)
        if found is None:
            raise LayoutError(
                f"this node's driver lists no GPU {layout.gpu}", "GPUs of this node", "look at `nvidia-smi -L` there"
            )
        profiles = tuple((parse_mig_profile(name), count) for name, count in layout.devices.items())
        entry = MigEntry(enabled=layout.enabled, devices=(found.gpu.index,), profiles=profiles)
        plans += plan_node([found], [entry])
    return tuple(plans)


def key_of(wish: MigWish, plans: Sequence[LayoutPlan]) -> str:
    """The id of the wish: another one whenever it is made anew, and the same while GPUs become as they are to be."""
    layouts = tuple(one.layout for one in plans)
    text = encode(
        MigRequest(version=0, id=f"{wish.stamp} {wish.boot} {wish.losses}", config=wish.value, layouts=layouts)
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def request_of(key: str, wish: MigWish, plans: Sequence[LayoutPlan]) -> MigRequest:
    """What is asked of the operator: the GPUs that have to change. Raises LayoutError for more than can be asked."""
    changing = [one for one in plans if one.changes]
    layouts = tuple(one.layout for one in changing)
    try:
        return request(key=key, config=wish.value, layouts=layouts, release=any(one.release for one in changing))
    except ValueError as error:
        raise LayoutError(
            f"a change of {len(layouts)} GPUs at once can't be asked for", "16 GPUs at most",
            f"use a {wish.noun} that is about fewer of them",
        ) from error  # fmt: skip
