"""What becomes of the label, given what is known: the file to read first. Pure.

A value that nobody means undoes nothing that is found. One wish is asked for, or tried, once: what has failed is done
again when the label is set anew, when GPUs in use are free, and after a reboot. What a person changes by hand
after a wish was fulfilled stays, as kgpu could not tell it from work in progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats import names
from kgpu.formats.mig_config import MigEntry
from kgpu.formats.mig_request import MigLabelState, MigProgress
from kgpu.mig.export import cut_of
from kgpu.mig.manager.layouts import key_of, request_of
from kgpu.mig.manager.model import MigDecision, MigLabelledNode, MigReason, MigWish
from kgpu.mig.node_plan import PlannedGpu, missing_gpus, plan_node
from kgpu.mig.survey import SurveyedGpu
from kgpu.mig.wanted import LayoutError, entry_of

ENDED: Final = frozenset({"Complete", "Failed"})
"""Phases of operations in which nothing is done any more."""
RETRY: Final = f"to try again, set the label {names.MIG_CONFIG_LABEL} to nothing, and then to the config"
"""An operator sets a label that was removed at once, and a value that stays the same is nobody's word."""
_SHOWN: Final = 8


class RefusedWishError(LayoutError):
    """A wish that can't be planned for; ``reason`` is the report's."""

    def __init__(self, what: str, expected: str, remedy: str, reason: MigReason) -> None:
        super().__init__(what, expected, remedy)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What counts beside the Node.

    ``operations``: changes are asked of the operator. ``settled`` is the key of the wish that was fulfilled last, and
    ``tried`` are those that this process has tried by itself, with what was wrong. ``holders`` are who uses GPUs, by
    UUID: all that is asked where there are no operations.
    """

    operations: bool = False
    settled: str = ""
    tried: Mapping[str, UserError] = field(default_factory=dict)
    holders: Mapping[str, Sequence[str]] = field(default_factory=dict)


def refused(reason: MigReason, problem: UserError, *, again: bool = False) -> MigDecision:
    """The wish fails before anything is changed."""
    return MigDecision(
        state=MigLabelState.FAILED, reason=reason, message=problem.one_line(), problem=problem, again=again
    )


def two_labels(view: MigLabelledNode) -> RefusedWishError | None:
    """What is wrong where another program cuts the same GPUs by a label of its own."""
    if not view.others:
        return None
    return RefusedWishError(
        f"the node has two labels that say how its GPUs are cut: {names.MIG_CONFIG_LABEL} and {', '.join(view.others)}",
        "one program that cuts them", f"remove the other label, or {names.MIG_CONFIG_LABEL}", MigReason.TWO_LABELS,
    )  # fmt: skip


def aim(gpus: Sequence[SurveyedGpu], name: str, entries: Sequence[MigEntry]) -> tuple[PlannedGpu, ...]:
    """A plan for each GPU that the config is about. Raises LayoutError, and a GPU's own problem."""
    planned = plan_node(gpus, entries)
    if planned:
        return planned
    about = [found for found in gpus if entry_of(entries, found.gpu.index, found.device, found.subsystem)]
    if about and not any(entry.enabled for entry in entries):
        return ()
    models = ", ".join(dict.fromkeys(found.product for found in gpus if found.product)) or "none"
    raise RefusedWishError(
        f'the config "{name}" is about no GPU of this node that has MIG',
        f"devices and device-filter that match GPUs with MIG; the node's GPUs are: {models}",
        "choose another config, or correct this one", MigReason.NOTHING,
    )  # fmt: skip


def decide(
    view: MigLabelledNode, wish: MigWish, known: Known, gpus: Sequence[SurveyedGpu], entries: Sequence[MigEntry]
) -> MigDecision:
    """What becomes of a label that is set, of a config that is there. Raises what ``aim`` raises."""
    planned = aim(gpus, wish.value, entries)
    key = key_of(wish, planned)
    changing = tuple(one for one in planned if one.steps)
    if not changing:
        return _fulfilled(view, key, gpus, entries)
    if not view.acts:
        return _adopted(wish, changing)
    if key == known.settled:
        return _changed_since(key, wish, changing)
    if known.operations:
        return _asked(view, wish, key, planned)
    return _alone(known, key, changing)


def _fulfilled(
    view: MigLabelledNode, key: str, gpus: Sequence[SurveyedGpu], entries: Sequence[MigEntry]
) -> MigDecision:  # fmt: skip
    progress = view.progress
    if progress is not None and progress.id == key and progress.phase not in ENDED:
        # Its GPUs are offered again at its end: whoever waits for success wants to use them.
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.UNDER_WAY, message=_under_way(progress), key=key,
            request=view.request if view.request is not None and view.request.id == key else None,
        )  # fmt: skip
    missing = missing_gpus(gpus, entries)
    message = f"the node has no GPU {', '.join(map(str, missing))}, which the config names" if missing else ""
    return MigDecision(
        state=MigLabelState.SUCCESS, reason=MigReason.APPLIED, message=message, key=key, settled=view.acts
    )


def _adopted(wish: MigWish, changing: Sequence[PlannedGpu]) -> MigDecision:
    return MigDecision(
        state=MigLabelState.SUCCESS, reason=MigReason.ADOPTED,
        message=f"GPUs are cut otherwise than {wish.value}, which nobody has asked for, and stay so: {_now(changing)}; "
        f"to cut them by a config, set the label {names.MIG_CONFIG_LABEL} to nothing, and then to the config",
    )  # fmt: skip


def _changed_since(key: str, wish: MigWish, changing: Sequence[PlannedGpu]) -> MigDecision:
    if all(one.wanted.instances and not one.found.gpu.instances for one in changing):
        return MigDecision(state=MigLabelState.PENDING, reason=MigReason.REQUESTED, key=key, lost=True)
    return MigDecision(
        state=MigLabelState.SUCCESS, reason=MigReason.CHANGED_SINCE, key=key,
        message=f"{wish.value} was applied, and somebody has changed GPUs by hand since: {_now(changing)}; {RETRY}",
    )  # fmt: skip


def _asked(view: MigLabelledNode, wish: MigWish, key: str, planned: Sequence[PlannedGpu]) -> MigDecision:
    progress = view.progress
    if progress is None or progress.id != key:
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.REQUESTED, key=key, request=request_of(key, wish, planned),
            message="waits for the operator to begin the change",
        )  # fmt: skip
    if progress.phase not in ENDED:
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.UNDER_WAY, message=_under_way(progress), key=key,
            request=request_of(key, wish, planned),
        )  # fmt: skip
    changing = [one for one in planned if one.steps]
    problem = RefusedWishError(
        f"the operation {progress.operation} has not cut the GPUs as {wish.value} asks: "
        + (progress.message or progress.reason or f"it has ended, and GPUs are otherwise: {_now(changing)}"),
        "a change that can be made",
        f"see `kgpu operations show {progress.operation}`; {RETRY}", MigReason.OPERATION,
    )  # fmt: skip
    return MigDecision(
        state=MigLabelState.FAILED, reason=MigReason.OPERATION, message=problem.one_line(), key=key, problem=problem
    )


def _alone(known: Known, key: str, changing: tuple[PlannedGpu, ...]) -> MigDecision:
    if key in known.tried:
        problem = known.tried[key]
        return MigDecision(
            state=MigLabelState.FAILED, reason=MigReason.FAILED, message=f"{problem.one_line()}; {RETRY}", key=key,
            problem=problem,
        )  # fmt: skip
    used = [one for one in changing if known.holders.get(one.found.uuid)]
    if used:
        problem = _in_use(used, known.holders)
        return MigDecision(
            state=MigLabelState.FAILED, reason=MigReason.IN_USE, message=problem.one_line(), key=key, problem=problem,
            again=True,
        )  # fmt: skip
    return MigDecision(
        state=MigLabelState.PENDING, reason=MigReason.APPLYING, message="the GPUs are being cut", key=key,
        apply=changing,
    )  # fmt: skip


def _in_use(used: Sequence[PlannedGpu], holders: Mapping[str, Sequence[str]]) -> RefusedWishError:
    said = []
    for one in used:
        names_of = holders[one.found.uuid]
        more = f" and {len(names_of) - _SHOWN} more" if len(names_of) > _SHOWN else ""
        said.append(f"{one.found.name} by {', '.join(names_of[:_SHOWN])}{more}")
    return RefusedWishError(
        f"GPUs that have to change are in use: {'; '.join(said)}", "GPUs that nobody uses",
        "end these, and the GPUs are cut by themselves", MigReason.IN_USE,
    )  # fmt: skip


def _under_way(progress: MigProgress) -> str:
    said = progress.message or progress.reason
    return f"operation {progress.operation} ({progress.phase}){': ' if said else ''}{said}"


def _now(planned: Sequence[PlannedGpu]) -> str:
    said = [f"{one.found.name}: {_cut_words(one.found)}" for one in planned]
    return "; ".join(said[:_SHOWN]) + (f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else "")


def _cut_words(found: SurveyedGpu) -> str:
    enabled, slices = cut_of(found.gpu)
    if not enabled:
        return "MIG off"
    return ", ".join(f"{number} of {name}" for name, number in slices) or "MIG on without slices"
