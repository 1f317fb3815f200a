"""What can be named: an operand, the agent, the operator, and what keeps the history of usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.operands import OPERANDS, Operand
from kgpu.kube.kinds import DAEMON_SETS, DEPLOYMENTS
from kgpu.kube.port import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something that runs in pods. ``label`` is what these carry, ``aliases`` are its other names.

    ``role`` is the agent's that does the same work where all are in one pod, "" for none. ``kept`` is why it is not
    restarted by hand, and ``instead`` what to do, "" where it may be.
    """

    name: str
    title: str
    label: tuple[str, str]
    kind: Resource = DAEMON_SETS
    aliases: tuple[str, ...] = ()
    role: str = ""
    kept: str = ""
    instead: str = ""


AGENT: Final = Workload(
    name="agent", title="agent", label=("app", names.AGENT_DAEMON_SET), aliases=(names.AGENT_DAEMON_SET,)
)


def _of_operand(row: Operand) -> Workload:
    elsewhere = () if row.within else (row.daemon_set, row.account)
    aliases = {row.role, *elsewhere} - {"", row.name}
    found = Workload(
        name=row.name, title=row.title, role=row.role, aliases=tuple(sorted(aliases)), label=("app", row.daemon_set)
    )
    if row.name != "driver":
        return found
    return replace(
        found, label=(names.COMPONENT_LABEL, names.DRIVER_COMPONENT),
        kept="a driver is restarted only on a node that nobody uses GPUs of",
        instead="kgpu node upgrade-driver NODE, which empties the node first",
    )  # fmt: skip


WORKLOADS: Final = (
    AGENT,
    Workload(name="operator", title="operator", label=("app", "gpu-operator"), kind=DEPLOYMENTS,
             aliases=("gpu-operator",)),
    *map(_of_operand, OPERANDS),
    Workload(name="usage-history", title="history of usage", label=("app", names.USAGE_DEPLOYMENT),
             kind=DEPLOYMENTS, aliases=(names.USAGE_DEPLOYMENT,)),
)  # fmt: skip


def _by_word() -> Iterator[tuple[str, Workload]]:
    for row in WORKLOADS:
        for alias in row.aliases:
            yield alias, row
    for row in WORKLOADS:  # a name counts more than what another is called, too
        yield row.name, row


BY_WORD: Final[Mapping[str, Workload]] = dict(_by_word())


def workload(word: str) -> Workload:
    """The one that is meant; ``ds/NAME`` and ``daemonset/NAME`` as for kubectl. Raises ConfigError."""
    kind, slash, rest = word.partition("/")
    meant = rest if slash and kind.lower() in {"ds", "daemonset", "daemonsets", "deploy", "deployment"} else word
    found = BY_WORD.get(meant) or BY_WORD.get(meant.lower())
    if found is not None:
        return found
    near = did_you_mean(meant, BY_WORD)
    raise ConfigError(
        f"nothing of kgpu is called {one_line(word, 63)}" + (f"; {near}" if near else ""),
        f"one of: {', '.join(row.name for row in WORKLOADS)}", "correct the name",
    )  # fmt: skip
