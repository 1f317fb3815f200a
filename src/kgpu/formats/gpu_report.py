"""What the health role says of a node's GPUs: the value of the Node annotation ``kgpu.dev/gpus``, one JSON object.

It is written together with the condition ``kgpu.dev/GPUsHealthy``, which ``rendered`` makes of it for people. Programs
of kgpu read this alone. GPUs that are well are only counted. It comes from a node, so that readers trust its shape only
after decoding, and look up what is to be done by its key. A report in a version that a reader does not know is None to
it, as one that is not there: the condition then stands for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.errors import DriverFault, to_do
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.gpu_remedies import words
from kgpu.formats.xid import xid_of
from kgpu.formats.xid.action import Action

VERSION: Final = 1
MAX_GPUS: Final = 32
"""GPUs that a report names; a node has 16 at most today."""
MAX_FACTS: Final = 16
MAX_SENTENCES: Final = 4
MAX_TEXT: Final = 300
MAX_BOOT: Final = 64
MAX_BYTES: Final = 64 << 10
"""A Node's annotations have room for 256 KiB together."""
MAX_SHOWN: Final = 8
MAX_MESSAGE: Final = 1500

WELL: Final = "GPUsHealthy"
UNREADABLE: Final = "DriverUnreadable"
NO_GPUS: Final = "NoGPUs"
"""Reasons of the condition besides those of GPUs."""


class ReportedGpu(msgspec.Struct, frozen=True, omit_defaults=True, rename={"remedy_key": "remedy"}, kw_only=True):
    """A GPU that is not well, or whose evidence is not acted on.

    ``uuid`` is "" for one that only the kernel's log names, by ``pci``. ``action`` is what is called for
    (``kgpu.formats.xid.action``), ``remedy_key`` the key of how (``kgpu.formats.gpu_remedies``). ``works``: it takes
    work all the same. ``facts`` are all names of evidence, such as ``xid:79`` or ``driver:lost``, the strongest first,
    and ``evidence`` the first of them in words. ``since`` is in seconds since 1970. ``muted`` says why nothing is done,
    "" where it is.
    """

    uuid: str = ""
    index: int | None = None
    pci: str = ""
    action: Action = Action.IGNORE
    reason: str = ""
    works: bool = False
    what: str = ""
    remedy_key: str = ""
    facts: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    since: float = 0.0
    muted: str = ""

    @property
    def name(self) -> str:
        """For people: ``GPU 0 (GPU-...)``."""
        if self.uuid:
            return f"GPU {self.index} ({self.uuid})" if self.index is not None else f"GPU {self.uuid}"
        return f"GPU at {self.pci}"

    @property
    def xids(self) -> tuple[int, ...]:
        """The numbers of its Xids, each once, the strongest first."""
        return tuple(dict.fromkeys(code for code in map(xid_of, self.facts) if code is not None))

    @property
    def remedy(self) -> str:
        """The remedy in words, "" where there is none."""
        return words(self.remedy_key)


class GpuReport(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """``count`` GPUs are known, ``gpus`` are those that are not well: what takes no work, what goes on, what is muted.
    ``more`` are not named for want of room. ``unreadable`` is why the driver can't be read, "" where it can, and
    ``fault`` the same for programs: None from an agent that is older than this field. ``boot`` is the ID of the boot
    that it is about.
    """

    version: int
    boot: str = ""
    count: int = 0
    gpus: tuple[ReportedGpu, ...] = ()
    more: int = 0
    unreadable: str = ""
    fault: DriverFault | None = None

    @property
    def bad(self) -> int:
        """How many take no work."""
        named = sum(not gpu.works and not gpu.muted for gpu in self.gpus)
        return named + (self.more if named == len(self.gpus) else 0)


def report(
    gpus: Sequence[ReportedGpu], *, count: int, unreadable: str = "", fault: DriverFault | None = None, boot: str = ""
) -> GpuReport:
    """A report in order, and short by construction."""
    ordered = sorted(gpus, key=lambda gpu: (bool(gpu.muted), gpu.works))
    shown = tuple(_short(gpu) for gpu in ordered[:MAX_GPUS])
    return GpuReport(
        version=VERSION, count=count, gpus=shown, more=len(ordered) - len(shown),
        unreadable=one_line(unreadable, MAX_TEXT), fault=fault if unreadable else None, boot=one_line(boot, MAX_BOOT),
    )  # fmt: skip


def _short(gpu: ReportedGpu) -> ReportedGpu:
    return msgspec.structs.replace(
        gpu,
        what=one_line(gpu.what, MAX_TEXT),
        muted=one_line(gpu.muted, MAX_TEXT),
        facts=gpu.facts[:MAX_FACTS],
        evidence=tuple(one_line(text, MAX_TEXT) for text in gpu.evidence[:MAX_SENTENCES]),
    )


def encode(report: GpuReport) -> str:
    """One line of JSON with sorted keys."""
    return msgspec.json.encode(report, order="sorted").decode()


def decode(text: str) -> GpuReport | None:
    """None for what is no report, or one of a version that is not known. All text in a report is printable."""
    decoded = typed.read(text, GpuReport, most=MAX_BYTES)
    if decoded is None or decoded.version != VERSION:
        return None
    return msgspec.structs.replace(
        decoded, gpus=tuple(map(_printable, decoded.gpus[:MAX_GPUS])), more=max(0, decoded.more),
        unreadable=one_line(decoded.unreadable, MAX_TEXT), boot=one_line(decoded.boot, MAX_BOOT),
    )  # fmt: skip


def _printable(gpu: ReportedGpu) -> ReportedGpu:
    texts = {name: one_line(getattr(gpu, name), MAX_TEXT) for name in ("uuid", "pci", "reason", "remedy_key")}
    facts = tuple(one_line(fact, MAX_TEXT) for fact in gpu.facts)
    return _short(msgspec.structs.replace(gpu, facts=facts, **texts))


def of_node(annotations: Mapping[str, str]) -> GpuReport | None:
    """The report in a Node's annotations; None when there is none that can be read."""
    text = annotations.get(names.GPUS_ANNOTATION)
    return decode(text) if text is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The condition: ``status`` is True (every GPU is well enough for work), False, or Unknown."""

    status: str
    reason: str
    message: str


def rendered(report: GpuReport) -> Shown:
    """The condition, for people."""
    bad = [gpu for gpu in report.gpus if not gpu.works and not gpu.muted]
    sentences = [sentence(gpu) for gpu in report.gpus]
    total = len(sentences) + report.more
    shown = sentences[:MAX_SHOWN] + ([f"and {total - MAX_SHOWN} more"] if total > MAX_SHOWN else [])
    if bad:
        return _made("False", max(bad, key=lambda gpu: gpu.action.rank).reason, shown)
    if report.unreadable:
        return _made("Unknown", UNREADABLE, [f"the driver can't be read: {report.unreadable}", *shown])
    if not report.count:
        return _made("Unknown", NO_GPUS, ["the driver lists no GPU"])
    return _made("True", WELL, [f"{report.count - total} of {report.count} GPUs are well", *shown])


def sentence(gpu: ReportedGpu) -> str:
    """What the condition says of one GPU."""
    if gpu.muted:
        return f"{gpu.name}: {gpu.muted}"
    if gpu.works:
        return f"{gpu.name}: {gpu.what} (it goes on working)"
    return to_do(f"{gpu.name}: {gpu.what}", gpu.remedy)


def _made(status: str, reason: str, parts: Sequence[str]) -> Shown:
    return Shown(status=status, reason=reason, message=one_line(". ".join(parts), MAX_MESSAGE))
