"""NVIDIA's MIG slices as a kind of layout: the label ``nvidia.com/mig.config``, and plans of slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from kgpu.formats import names
from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_request import MigLayout
from kgpu.hw.partitioning import Partitioner
from kgpu.mig.apply import Applying
from kgpu.mig.checkpoint import plan_restore, saved_gpus
from kgpu.mig.export import cut_of
from kgpu.mig.manager.configs import ConfigLookup
from kgpu.mig.manager.kind import AimedLayout, LayoutLabel, LayoutOutcome, LayoutPlan
from kgpu.mig.manager.layouts import layout_of, plan_layouts
from kgpu.mig.manager.memory import ChangeRecord
from kgpu.mig.manager.model import MigReason
from kgpu.mig.manager.plan import RefusedWishError
from kgpu.mig.model import MigAction
from kgpu.mig.node_plan import PlannedGpu, missing_gpus, plan_node
from kgpu.mig.survey import SurveyedGpu, survey
from kgpu.mig.wanted import LayoutError, entry_of

LABEL: Final = LayoutLabel(
    key=names.MIG_CONFIG_LABEL, state=names.MIG_CONFIG_STATE_LABEL, manager=names.MIG_FIELD_MANAGER,
    request=names.MIG_REQUEST_ANNOTATION, report=names.MIG_REPORT_ANNOTATION, noun="config", vendor=names.NVIDIA,
    title="NVIDIA", reasons="Mig",
    others={
        names.VGPU_CONFIG_LABEL: "NVIDIA's vGPU device manager",
        "nos.nebuly.com/gpu-partitioning": "nos",
        "cloud.google.com/gke-gpu-partition-size": "GKE",
    },
)  # fmt: skip
_TAKING: Final = frozenset({MigAction.DESTROY_COMPUTE, MigAction.DESTROY_INSTANCE, MigAction.MODE, MigAction.RESET})
"""Steps by which whoever uses the GPU loses something."""


@dataclass(slots=True, kw_only=True)
class MigSlices:
    """Implements ``LayoutKind``. ``open_driver()`` raises HwError where there is no driver."""

    open_driver: Callable[[], Partitioner]
    lookup: ConfigLookup = field(default_factory=ConfigLookup)

    @property
    def label(self) -> LayoutLabel:
        """The label that asks for slices."""
        return LABEL

    def open(self) -> Partitioner:
        """What cuts GPUs."""
        return self.open_driver()

    async def survey(self, driver: Partitioner) -> tuple[SurveyedGpu, ...]:
        """The node's GPUs."""
        return tuple(survey(gpu) for gpu in await driver.gpus())

    def aim(self, gpus: Sequence[SurveyedGpu], name: str) -> AimedLayout:
        """The layouts of the config of this name."""
        try:
            chosen = self.lookup.choose(name, gpus)
        except LayoutError as problem:  # GPUs for which no config can be made
            raise RefusedWishError(problem.what, problem.expected, problem.remedy, MigReason.CONFIG) from problem
        return replace(aim(gpus, name, chosen.entries), generated=chosen.generated, warnings=chosen.warnings)

    def plans(self, gpus: Sequence[SurveyedGpu], layouts: Sequence[MigLayout]) -> tuple[LayoutPlan, ...]:
        """A plan for each of the layouts."""
        return tuple(map(_plan, plan_layouts(gpus, layouts)))

    def begun(
        self, record: ChangeRecord, gpus: Sequence[SurveyedGpu], plans: Sequence[LayoutPlan]
    ) -> ChangeRecord:  # fmt: skip
        """The record with each instance and its place."""
        wanted = {plan.gpu for plan in plans}
        return msgspec.structs.replace(record, former=saved_gpus([found for found in gpus if found.uuid in wanted]))

    def back(
        self, gpus: Sequence[SurveyedGpu], record: ChangeRecord, only: frozenset[str] | None = None
    ) -> tuple[LayoutPlan, ...]:
        """Plans that make each former instance at its place."""
        former = [one for one in record.former if only is None or one.uuid in only]
        return tuple(map(_plan, plan_restore(gpus, former)))

    async def apply(self, driver: Partitioner, plans: Sequence[LayoutPlan]) -> tuple[LayoutOutcome, ...]:
        """Take the steps."""
        planned: list[PlannedGpu] = [one.plan for one in plans]
        if any(one.stops for one in plans):
            # What the stopped services had open counted as use.
            found = {one.uuid: one for one in await self.survey(driver)}
            planned = [replace(one, found=found.get(one.found.uuid, one.found)) for one in planned]
        outcomes = await Applying(driver=driver).node(planned)
        return tuple(LayoutOutcome(failure=one.failure, loss=one.loss) for one in outcomes if one.failure is not None)


def aim(gpus: Sequence[SurveyedGpu], name: str, entries: Sequence[MigEntry]) -> AimedLayout:
    """A plan for each GPU that the config is about. Raises LayoutError, and a GPU's own problem."""
    planned = plan_node(gpus, entries)
    if not planned:
        _check_about(gpus, name, entries)
    missing = missing_gpus(gpus, entries)
    note = f"the node has no GPU {', '.join(map(str, missing))}, which the config names" if missing else ""
    return AimedLayout(plans=tuple(map(_plan, planned)), note=note)


def _check_about(gpus: Sequence[SurveyedGpu], name: str, entries: Sequence[MigEntry]) -> None:
    about = [found for found in gpus if entry_of(entries, found.gpu.index, found.device, found.subsystem)]
    if about and not any(entry.enabled for entry in entries):
        return
    models = ", ".join(dict.fromkeys(found.product for found in gpus if found.product)) or "none"
    raise RefusedWishError(
        f'the config "{name}" is about no GPU of this node that has MIG',
        f"devices and device-filter that match GPUs with MIG; the node's GPUs are: {models}",
        "choose another config, or correct this one", MigReason.NOTHING,
    )  # fmt: skip


def _plan(planned: PlannedGpu) -> LayoutPlan:
    found, wanted = planned.found, planned.wanted
    actions = {step.action for step in planned.steps}
    resets = MigAction.RESET in actions
    return LayoutPlan(
        gpu=found.uuid, name=found.name, layout=layout_of(found.uuid, wanted), now=_cut_words(found),
        changes=bool(planned.steps), release=resets, stops=resets, takes=not actions.isdisjoint(_TAKING),
        gone=bool(wanted.instances) and not found.gpu.instances, plan=planned,
    )  # fmt: skip


def _cut_words(found: SurveyedGpu) -> str:
    enabled, slices = cut_of(found.gpu)
    if not enabled:
        return "MIG off"
    return ", ".join(f"{number} of {name}" for name, number in slices) or "MIG on without slices"
