"""What differs between the ways of parting GPUs, as the manager sees it: a label with its names, and a port.

A kind is NVIDIA's MIG slices (``slices.py``) or AMD's partition modes (``kgpu.mig.modes``). The manager decides, asks,
remembers, gives back and tells for either; what a layout is and how a driver makes it only the kind knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kgpu.base.errors import UserError
from kgpu.formats.mig_request import MigLabelState, MigLayout

if TYPE_CHECKING:
    from kgpu.mig.manager.memory import ChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLabel:
    """The Node label that says how GPUs are to be parted, and the names around it.

    ``state`` is the label of what has become of it, ``failed`` its value for a failure, where that is another than
    kgpu's own. ``request`` and ``report`` are the annotations of what is asked and told, ``manager`` is the field
    manager of what is written. ``noun`` is what the label names, ``vendor`` and ``title`` whose GPUs it is about.
    ``reasons`` begins the words of reports and Events. ``others`` are labels by which other programs part the same
    GPUs, and whose they are.
    """

    key: str
    state: str
    manager: str
    request: str
    report: str
    noun: str
    vendor: str
    title: str
    reasons: str
    failed: str = str(MigLabelState.FAILED)
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def retry(self) -> str:
        """What a person does to have it tried again: an operator sets a label that was removed at once, and a value
        that stays the same is nobody's word.
        """
        return f"to try again, set the label {self.key} to nothing, and then to the {self.noun}"

    def state_value(self, state: MigLabelState) -> str:
        """The value of the state label."""
        return self.failed if state is MigLabelState.FAILED else str(state)


class FoundGpu(Protocol):
    """A GPU as the kind's driver reads it."""

    @property
    def uuid(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """What becomes of one GPU.

    ``name`` and ``now``, how it is parted, are for people. ``changes``: it is not as it is to be. ``release``: no
    program may have the driver open meanwhile; ``stops``: nor may services of the host use it. ``takes``: whoever uses
    the GPU loses something. ``gone``: it is to be parted, and is whole. ``plan`` is the kind's own.
    """

    gpu: str
    name: str
    layout: MigLayout
    now: str
    changes: bool
    release: bool = False
    stops: bool = False
    takes: bool = True
    gone: bool = False
    plan: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AimedLayout:
    """What a value of the label asks of the node. ``note`` is what people should know though it can be had;
    ``generated`` is the file that was made for this node, "" where one was given; ``warnings`` are about the file.
    """

    plans: tuple[LayoutPlan, ...]
    note: str = ""
    generated: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOutcome:
    """Why a GPU is not as wanted, and then why it is not as it was either, None if it is."""

    failure: UserError
    loss: UserError | None = None


class LayoutKind(Protocol):
    """One way of parting GPUs. ``driver`` is what ``open`` gives; ``gpus`` what ``survey`` found. All raise UserError:
    ConfigError for what can't be had, HwError for what the driver says.
    """

    @property
    def label(self) -> LayoutLabel:
        """The label that asks for it."""
        ...

    def open(self) -> Any:
        """The driver, which has ``close``. Raises NoHardwareError without one."""
        ...

    async def survey(self, driver: Any) -> Sequence[Any]:
        """The node's GPUs as they are (``FoundGpu``)."""
        ...

    def aim(self, gpus: Sequence[Any], name: str) -> AimedLayout:
        """What the value ``name`` asks of them."""
        ...

    def plans(self, gpus: Sequence[Any], layouts: Sequence[MigLayout]) -> tuple[LayoutPlan, ...]:
        """A plan for each of the layouts."""
        ...

    def begun(self, record: ChangeRecord, gpus: Sequence[Any], plans: Sequence[LayoutPlan]) -> ChangeRecord:
        """The record with how the GPUs of these plans are now."""
        ...

    def back(
        self, gpus: Sequence[Any], record: ChangeRecord, only: frozenset[str] | None = None
    ) -> tuple[LayoutPlan, ...]:
        """Plans for the former layouts, of all GPUs of the record or of these."""
        ...

    async def apply(self, driver: Any, plans: Sequence[LayoutPlan]) -> tuple[LayoutOutcome, ...]:
        """Carry the plans out; what has failed. Each GPU ends as wanted or as it was."""
        ...
