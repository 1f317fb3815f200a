"""Rows HW that only kgpu's agent tells: counts of memory errors, heat, links, and numbers that no other row knows.

Health's verdicts reach the cluster as a node's condition and events. A verdict that no other rule recognises by its Xid
is reported here under its row of the catalogue, or as it is where there is no row: every unwell GPU is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.agent_reports import APPLICATION_ERROR, UnwellGpu, as_told, told
from kgpu.doctor.model import Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.hardware import errors, readings
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_gpus import troubled
from kgpu.hw.port import Problem

_ROOM: Final = 4  # pieces of evidence in one sentence
_COOL: Final = "check fans, air flow and room temperature"


@dataclass(frozen=True, slots=True)
class _Row:
    """Names of health's evidence, whole or up to the colon (``kgpu/health/checks.py``), the catalogue's row, and what
    it means in a sentence that goes on with health's words. ``steps`` are for every vendor, ``nvidia`` for
    nodes with its GPUs.
    """

    id: str
    facts: frozenset[str]
    means: str
    steps: tuple[str, ...] = ()
    nvidia: str = ""

    def has(self, fact: str) -> bool:
        return fact in self.facts or fact.partition(":")[0] in self.facts


def _row(id_: str, facts: str, means: str, *steps: str, nvidia: str = "") -> _Row:
    return _Row(id_, frozenset(facts.split()), means, steps, nvidia)


_ROWS: Final = (
    _row(
        "HW-03",
        "remapped-rows:failed ecc:unrepairable",
        "has bad memory that can't be repaired: it must be replaced",
        "have the card replaced (RMA)",
    ),
    _row("HW-14", "recovery-action driver:needs-reset", "calls for an action by the driver's own word"),
    _row("HW-09", "driver:missing", "is missing"),
    _row(
        "HW-02",
        "ecc:uncorrected ecc:sram remapped-rows:many retired-pages:many",
        "has errors of its memory",
        nvidia="nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
    ),
    _row(
        "HW-04",
        "remapped-rows:pending retired-pages:pending xid:63",
        "has bad memory that is mapped out at its next reset",
    ),
    _row("HW-06", "nvlink", "has trouble with its NVLinks", nvidia="nvidia-smi nvlink -s; nvidia-smi nvlink -e"),
    _row(
        "HW-05",
        "temperature throttle",
        "runs hot, or is slowed down by its hardware",
        _COOL,
        nvidia="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    ),
    _row("HW-10", "pcie", "has a bad PCIe link", "reseat the card or its riser; some slots have fewer lanes by design"),
)
_USUAL: Final = _row("HW-00", "", "is not well")
_WITHDRAWN: Final = _row("NODE-00", "", "is not well and takes no work", "on the node:", "kgpu health; kgpu validate")
"""With no row of the catalogue: what is withdrawn explains that pods wait, and what goes on working does not."""
_READ: Final[dict[str, Callable[[Snapshot], Iterable[Finding]]]] = {
    "HW-03": readings.remap_failed,
    "HW-04": readings.remap_pending,
    "HW-05": readings.slowed,
    "HW-10": readings.narrow_link,
}
"""Who finds the same in the readings of the node itself: what is found there is not told twice."""


@rule("HW-00", "A GPU is not well", Place.HARDWARE, last_resort=True)
def not_well(snapshot: Snapshot) -> Iterator[Finding]:
    """kgpu's agent reports a GPU as unwell, or asks for a look at it, for a reason that no other rule covers: an Xid
    that is not in NVIDIA's catalogue, a driver library that crashes, a CUDA check that fails. The remedy is the
    verdict's own: kgpu health on the node shows all of its evidence.
    """
    yield from troubled(snapshot, Problem.UNREADABLE)
    explained = {
        (row, node, uuid)
        for row, look in _READ.items()
        for finding in look(snapshot)
        for node in finding.nodes
        for uuid in finding.gpus
    }
    for unwell in told(snapshot):
        if _is_known(unwell):
            continue
        usual = _USUAL if unwell.works else _WITHDRAWN
        row = next((row for row in _ROWS if any(map(row.has, unwell.facts))), usual)
        if unwell.uuid and (row.id, unwell.node.name, unwell.uuid) in explained:
            continue
        by_program = unwell.reason == APPLICATION_ERROR
        finding = as_told(
            unwell, f"{unwell.gpu} of node {unwell.node.name} {row.means}: {'; '.join(unwell.parts[:_ROOM])}"
        )
        steps = dict.fromkeys(
            [
                *finding.remedy[:-1],
                *map(Remedy, row.steps),
                *_nvidia_steps(row, unwell),
                *(remedies.explain_xid(code) for code in unwell.xids),
                finding.remedy[-1],
            ]
        )
        yield replace(
            finding, id="HW-08" if by_program else row.id, remedy=tuple(steps), stays=True,
            level=Level.NOTE if by_program else Level.PROBLEM,
        )  # fmt: skip


def _nvidia_steps(row: _Row, unwell: UnwellGpu) -> tuple[Remedy, ...]:
    """The commands of its driver, where a node is not known to have another vendor's GPUs alone."""
    vendors = matching.vendors_of(unwell.node)
    ours = not vendors or matching.NVIDIA in vendors
    return (Remedy("on the node:"), Remedy(row.nvidia)) if row.nvidia and ours else ()


def _is_known(unwell: UnwellGpu) -> bool:
    """Whether another rule reports it, by its Xid or by the name of its evidence."""
    by_name = errors.is_lost(unwell) or readings.WAITS in unwell.facts or readings.is_hung(unwell)
    return by_name or not errors.KNOWN.isdisjoint(unwell.xids)
