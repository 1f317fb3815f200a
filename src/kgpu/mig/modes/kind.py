"""AMD's partition modes as a kind of layout: the label ``dcm.amd.com/gpu-config-profile``, and plans of modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.partition_profiles import PartitionProfiles, defaults, fitted, parse_profiles
from kgpu.hw.partitioning import ModeGpu, ModePartitioner
from kgpu.mig.manager.kind import AimedLayout, LayoutLabel, LayoutOutcome, LayoutPlan
from kgpu.mig.manager.memory import ChangeRecord
from kgpu.mig.modes import apply as applying
from kgpu.mig.modes.plan import aim, layout, mode_of, of_layouts, plan

LABEL: Final = LayoutLabel(
    key=names.AMD_PROFILE_LABEL, state=names.AMD_PROFILE_STATE_LABEL, manager=names.AMD_PROFILE_FIELD_MANAGER,
    request=names.PARTITION_REQUEST_ANNOTATION, report=names.PARTITION_REPORT_ANNOTATION, noun="profile",
    vendor=names.AMD, title="AMD", reasons="Partition", failed="failure",
)  # fmt: skip


class ProfileSource(Protocol):
    """The text of a file, followed."""

    def current(self) -> ConfigText | None:
        """What was last read, with its problem if it can't be; None before."""
        ...


@dataclass(slots=True, kw_only=True)
class ProfileLookup:
    """Where profiles stand: in the ``given`` file, or while that is ``absent()`` in AMD's own. Those of AMD are for as
    many GPUs as the node has, also where a file has them.
    """

    given: ProfileSource | None = None
    absent: Callable[[], bool] = lambda: False
    _parsed: tuple[str, PartitionProfiles] | None = None

    def profiles(self, gpus: int) -> PartitionProfiles:
        """The profiles for a node with so many GPUs. Raises ConfigError."""
        if self.given is None or self.absent():
            return PartitionProfiles(profiles=defaults(gpus))
        text = self.given.current()
        if text is None:
            raise ConfigError("the file of partition profiles was not read yet", "a config.json", "wait for it")
        if text.problem is not None:
            raise text.problem
        return fitted(self._read(text.text, text.name), gpus)

    def services(self) -> tuple[str, ...]:
        """The host's services that are to be stopped for a change. Raises ConfigError."""
        return self.profiles(1).services

    def _read(self, text: str, source: str) -> PartitionProfiles:
        if self._parsed is None or self._parsed[0] != text:
            self._parsed = text, parse_profiles(text, source=source)
        return self._parsed[1]


@dataclass(slots=True, kw_only=True)
class PartitionModes:
    """Implements ``LayoutKind``. ``open_driver()`` raises NoHardwareError where there is none."""

    open_driver: Callable[[], ModePartitioner]
    lookup: ProfileLookup

    @property
    def label(self) -> LayoutLabel:
        """The label that names a profile."""
        return LABEL

    def open(self) -> ModePartitioner:
        """What sets modes."""
        return self.open_driver()

    async def survey(self, driver: ModePartitioner) -> tuple[ModeGpu, ...]:
        """The node's GPUs."""
        return await driver.gpus()

    def aim(self, gpus: Sequence[ModeGpu], name: str) -> AimedLayout:
        """The modes of the profile of this name."""
        return AimedLayout(plans=aim(gpus, name, self.lookup.profiles(len(gpus)).chosen(name)))

    def plans(self, gpus: Sequence[ModeGpu], layouts: Sequence[MigLayout]) -> tuple[LayoutPlan, ...]:
        """A plan for each of the layouts."""
        return plan(gpus, of_layouts(gpus, layouts))

    def begun(self, record: ChangeRecord, gpus: Sequence[ModeGpu], plans: Sequence[LayoutPlan]) -> ChangeRecord:
        """The record with the modes that the GPUs have."""
        wanted = {one.gpu for one in plans}
        former = tuple(layout(gpu.uuid, mode_of(gpu)) for gpu in gpus if gpu.uuid in wanted)
        return msgspec.structs.replace(record, former_modes=former)

    def back(
        self, gpus: Sequence[ModeGpu], record: ChangeRecord, only: frozenset[str] | None = None
    ) -> tuple[LayoutPlan, ...]:
        """Plans that set the former modes again."""
        return self.plans(gpus, [one for one in record.former_modes if only is None or one.gpu in only])

    async def apply(self, driver: ModePartitioner, plans: Sequence[LayoutPlan]) -> tuple[LayoutOutcome, ...]:
        """Set the modes."""
        return await applying.apply(driver, plans)
