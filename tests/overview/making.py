"""Clusters for tests of the page: nodes as ``kgpu top`` reads them, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any

from kgpu.overview.model import (
    HardwareError,
    KnownCluster,
    OverviewQuery,
    Sees,
    Told,
    ToldFinding,
    ToldIdleness,
    ToldReport,
)
from kgpu.overview.plan import shown
from kgpu.overview.render import document, parts
from kgpu.top.model import GpuHealth, GpuNode, GpuUser, NodeTrouble, ShownGpu

NOW = 1000.0


def gpu(node: str, index: int, *users: str, busy: float | None = 0.0, **more: Any) -> ShownGpu:
    """A GPU that the pods ``namespace/name`` hold."""
    values = {"memory_used_mib": 1024.0, "memory_total_mib": 81920.0, "temperature_c": 40.0, "power_w": 100.0}
    if busy is not None:
        values["utilization_percent"] = busy
    held = tuple(GpuUser(namespace=user.partition("/")[0], pod=user.partition("/")[2]) for user in users)
    return ShownGpu(
        index=index, uuid=f"GPU-{node}-{index}", name="NVIDIA H100", values=values, users=held,
        **{"health": GpuHealth.OK, **more},
    )  # fmt: skip


def node(name: str, *gpus: ShownGpu, trouble: str = "") -> GpuNode:
    return GpuNode(name=name, gpus=gpus, trouble=NodeTrouble(what=trouble, remedy="kgpu status") if trouble else None)


def fleet(nodes: int, each: int = 8) -> tuple[GpuNode, ...]:
    """Nodes of which every other GPU is held and busy."""
    return tuple(
        node(f"node-{n}", *(
            gpu(f"node-{n}", i, *((f"ml/train-{n}-{i}",) if i % 2 == 0 else ()), busy=(n * 7 + i * 13) % 101 if i % 2 == 0 else 0)
            for i in range(each)
        ))
        for n in range(nodes)
    )  # fmt: skip


def gathered(*nodes: GpuNode, age: float = 0.0, report: Iterable[ToldFinding] = (), **more: Any) -> KnownCluster:
    """What is known of these nodes, which were all read ``age`` seconds ago."""
    told = {
        "report": Told(ToldReport(findings=tuple(report)), NOW),
        "idleness": Told(ToldIdleness(), NOW),
        "waiting": Told((), NOW),
        "limits": Told((), NOW),
        "events": Told((), NOW),
        "verdicts": Told((), NOW),
    }
    return KnownCluster(
        now=NOW, nodes=nodes, read_at={each.name: NOW - age for each in nodes}, found=True, **{**told, **more}
    )


def finding(subject: str = "Node a", cause: str = "it is broken", **more: Any) -> ToldFinding:
    return ToldFinding(**{"id": "HW-01", "subject": subject, "cause": cause, "level": "problem", **more})


def error(node: str = "a", code: str = "Xid 79", **more: Any) -> HardwareError:
    """An error of the GPU 0 of that node, as ``gpu`` makes it."""
    return HardwareError(
        **{"node": node, "code": code, "at": "2026-12-01T10:00:00Z", "uuid": f"GPU-{node}-0", "index": 0, **more}
    )


def html_of(known: KnownCluster, query: OverviewQuery | None = None, sees: Sees = None, **more: Any) -> str:
    """The whole page."""
    page = shown(known, query or OverviewQuery(), sees)
    return document(page.query, parts(page, **more).values(), stamp="a-1").decode()


EMPTY = {"meta", "link", "input"}


class Outline(HTMLParser):
    """The tags, the names of attributes and the text of a page; fails for a tag that is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        self.tags.append((tag, tuple(names)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())
