"""What becomes of the label, given what is known: the file to read first. Pure.

A value that nobody means undoes nothing that is found. One wish is asked for, or tried, once: what has failed is done
again when the label is set anew, when GPUs in use are free, and after a reboot. What a person changes by hand
after a wish was fulfilled stays, as kgpu could not tell it from work in progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats.mig_request import MigLabelState, MigProgress
from kgpu.mig.manager.kind import AimedLayout, LayoutLabel, LayoutPlan
from kgpu.mig.manager.layouts import key_of, request_of
from kgpu.mig.manager.model import MigDecision, MigLabelledNode, MigReason, MigWish
from kgpu.mig.wanted import LayoutError

ENDED: Final = frozenset({"Complete", "Failed"})
"""Phases of operations in which nothing is done any more."""
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


def two_labels(view: MigLabelledNode, label: LayoutLabel) -> RefusedWishError | None:
    """What is wrong where another program cuts the same GPUs by a label of its own."""
    if not view.others:
        return None
    return RefusedWishError(
        f"the node has two labels that say how its GPUs are cut: {label.key} and {', '.join(view.others)}",
        "one program that cuts them", f"remove the other label, or {label.key}", MigReason.TWO_LABELS,
    )  # fmt: skip


def decide(
    view: MigLabelledNode, wish: MigWish, known: Known, aimed: AimedLayout, label: LayoutLabel
) -> MigDecision:  # fmt: skip
    """What becomes of a label that is set, of a layout that can be had. Raises LayoutError for what can't be asked."""
    key = key_of(wish, aimed.plans)
    changing = tuple(one for one in aimed.plans if one.changes)
    if not changing:
        return _fulfilled(view, key, aimed.note)
    if not view.acts:
        return _adopted(wish, changing, label)
    if key == known.settled:
        return _changed_since(key, wish, changing, label)
    if known.operations:
        return _asked(view, wish, key, changing, label)
    return _alone(known, key, changing, label)


def _fulfilled(view: MigLabelledNode, key: str, note: str) -> MigDecision:
    progress = view.progress
    if progress is not None and progress.id == key and progress.phase not in ENDED:
        # Its GPUs are offered again at its end: whoever waits for success wants to use them.
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.UNDER_WAY, message=_under_way(progress), key=key,
            request=view.request if view.request is not None and view.request.id == key else None,
        )  # fmt: skip
    return MigDecision(state=MigLabelState.SUCCESS, reason=MigReason.APPLIED, message=note, key=key, settled=view.acts)


def _adopted(wish: MigWish, changing: Sequence[LayoutPlan], label: LayoutLabel) -> MigDecision:
    return MigDecision(
        state=MigLabelState.SUCCESS, reason=MigReason.ADOPTED,
        message=f"GPUs are cut otherwise than {wish.value}, which nobody has asked for, and stay so: {_now(changing)}; "
        f"to cut them by a {label.noun}, set the label {label.key} to nothing, and then to the {label.noun}",
    )  # fmt: skip


def _changed_since(
    key: str, wish: MigWish, changing: Sequence[LayoutPlan], label: LayoutLabel
) -> MigDecision:  # fmt: skip
    if all(one.gone for one in changing):
        return MigDecision(state=MigLabelState.PENDING, reason=MigReason.REQUESTED, key=key, lost=True)
    return MigDecision(
        state=MigLabelState.SUCCESS, reason=MigReason.CHANGED_SINCE, key=key,
        message=f"{wish.value} was applied, and somebody has changed GPUs by hand since: {_now(changing)}; "
        + label.retry,
    )  # fmt: skip


def changed_under(decision: MigDecision, pods: Sequence[str]) -> MigDecision:
    """The decision on GPUs that somebody has changed by hand, with the pods that hold parts that are gone."""
    if not pods:
        return decision
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    said = f"pods hold parts that are gone, and have to be ended: {', '.join(pods[:_SHOWN])}{more}"
    return replace(decision, message=f"{said}; {decision.message}", pods=tuple(pods), again=True)


def _asked(
    view: MigLabelledNode, wish: MigWish, key: str, changing: Sequence[LayoutPlan], label: LayoutLabel
) -> MigDecision:  # fmt: skip
    progress = view.progress
    if progress is None or progress.id != key:
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.REQUESTED, key=key, request=request_of(key, wish, changing),
            message="waits for the operator to begin the change",
        )  # fmt: skip
    if progress.phase not in ENDED:
        return MigDecision(
            state=MigLabelState.PENDING, reason=MigReason.UNDER_WAY, message=_under_way(progress), key=key,
            request=request_of(key, wish, changing),
        )  # fmt: skip
    problem = RefusedWishError(
        f"the operation {progress.operation} has not cut the GPUs as {wish.value} asks: "
        + (progress.message or progress.reason or f"it has ended, and GPUs are otherwise: {_now(changing)}"),
        "a change that can be made",
        f"see `kgpu operations show {progress.operation}`; {label.retry}", MigReason.OPERATION,
    )  # fmt: skip
    return MigDecision(
        state=MigLabelState.FAILED, reason=MigReason.OPERATION, message=problem.one_line(), key=key, problem=problem
    )


def _alone(
    known: Known, key: str, changing: tuple[LayoutPlan, ...], label: LayoutLabel
) -> MigDecision:  # fmt: skip
    if key in known.tried:
        problem = known.tried[key]
        return MigDecision(
            state=MigLabelState.FAILED, reason=MigReason.FAILED, key=key, problem=problem,
            message=f"{problem.one_line()}; {label.retry}",
        )  # fmt: skip
    used = [one for one in changing if known.holders.get(one.gpu)]
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


def _in_use(used: Sequence[LayoutPlan], holders: Mapping[str, Sequence[str]]) -> RefusedWishError:
    said = []
    for one in used:
        names_of = holders[one.gpu]
        more = f" and {len(names_of) - _SHOWN} more" if len(names_of) > _SHOWN else ""
        said.append(f"{one.name} by {', '.join(names_of[:_SHOWN])}{more}")
    return RefusedWishError(
        f"GPUs that have to change are in use: {'; '.join(said)}", "GPUs that nobody uses",
        "end these, and the GPUs are cut by themselves", MigReason.IN_USE,
    )  # fmt: skip


def _under_way(progress: MigProgress) -> str:
    said = progress.message or progress.reason
    return f"operation {progress.operation} ({progress.phase}){': ' if said else ''}{said}"


def _now(planned: Sequence[LayoutPlan]) -> str:
    said = [f"{one.name}: {one.now}" for one in planned]
    return "; ".join(said[:_SHOWN]) + (f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else "")
