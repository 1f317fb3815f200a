"""What one error calls for by itself: catalogue, the words of NVLink errors, rows of lines without a number, and what
the config says instead.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.printable import one_line
from kgpu.formats.gpu_remedies import configured
from kgpu.formats.xid import nvlink
from kgpu.formats.xid.buckets import GUIDANCE, RECOVERY, Guidance
from kgpu.formats.xid.catalogue import guidance, short_name, switch_guidance, sxids
from kgpu.health.amdgpu_log import BY_KEY
from kgpu.health.config import HealthConfig
from kgpu.health.model import EvidenceSource, Fault, GpuEvidence

MAX_TEXT: Final = 200


def evidence_of(fault: Fault, config: HealthConfig) -> GpuEvidence | None:
    """The evidence, or None when the config says to ignore it."""
    if fault.key:
        return _of_line(fault, config)
    if fault.code in (config.ignore_sxids if fault.sxid else config.ignore_xids):
        return None
    source = EvidenceSource.SXID if fault.sxid else EvidenceSource.XID
    if source in config.ignore_checks:
        return None
    usual, what = _switch(fault) if fault.sxid else _gpu(fault)
    configured_action = (config.sxid_actions if fault.sxid else config.xid_actions).get(fault.code)
    where = "" if fault.gpu_instance is None else f" in GPU instance {fault.gpu_instance}"
    return GpuEvidence(
        source=source,
        key=str(fault.code),
        what=f"{'SXid' if fault.sxid else 'Xid'} {fault.code}{where}: {what}",
        action=configured_action or usual.action,
        remedy_key=usual.key if configured_action in {None, usual.action} else configured(configured_action),
        severity=usual.severity,
        first=fault.at,
        last=fault.at,
        text=one_line(fault.text, MAX_TEXT),
        gpu_instance=fault.gpu_instance,
        compute_instance=fault.compute_instance,
    )


def _of_line(fault: Fault, config: HealthConfig) -> GpuEvidence | None:
    row = BY_KEY.get(fault.key)
    if row is None or EvidenceSource.LOG in config.ignore_checks:
        return None
    return GpuEvidence(
        source=EvidenceSource.LOG, key=row.key, what=row.what, action=row.action, remedy_key=row.remedy_key,
        severity=row.severity, first=fault.at, last=fault.at, text=one_line(fault.text, MAX_TEXT),
    )  # fmt: skip


def xid_guidance(code: int, text: str = "", recovery: str = "") -> tuple[Guidance, str]:
    """What an Xid calls for and what it means; the text of its log line is taken into account."""
    if recovery in RECOVERY:
        return RECOVERY[recovery], f"the driver asks for: {recovery}"
    link = nvlink.read(code, text)
    if link is None:
        return guidance(code), short_name(code)
    return GUIDANCE[link.bucket], f"{short_name(code)}: {link.what}"


def _gpu(fault: Fault) -> tuple[Guidance, str]:
    return xid_guidance(fault.code, fault.text)


def _switch(fault: Fault) -> tuple[Guidance, str]:
    row = sxids().get(fault.code)
    link = "" if fault.link is None else f", link {fault.link}"
    return switch_guidance(fault.code, fatal=fault.fatal), (row.what if row else "not in the guide") + link
