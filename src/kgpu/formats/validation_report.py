"""What the validator says of a node: the value of the Node annotation ``kgpu.dev/validation``, one JSON object.

It is written together with the condition ``kgpu.dev/Validated``, which is for people; programs of kgpu read this alone.
Checks that passed are left out. It comes from a node: readers trust its shape only after decoding, and what it says is
to be done is quoted and never offered. A report in a version that a reader does not know is None to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.errors import UserError, to_do
from kgpu.base.printable import one_line
from kgpu.formats import names

VERSION: Final = 1
MAX_CHECKS: Final = 8
MAX_DEVICES: Final = 32
MAX_TEXT: Final = 300
MAX_BOOT: Final = 64
MAX_BYTES: Final = 64 << 10
"""A Node's annotations have room for 256 KiB together."""
FAILED: Final = "failed"


class CheckTrouble(msgspec.Struct, frozen=True, omit_defaults=True, rename={"remedy": "todo"}, kw_only=True):
    """What failed, what was expected, what to do. ``problem`` is a word of ``kgpu.hw.port.Problem``, "" for none."""

    what: str
    expected: str = ""
    remedy: str = ""
    problem: str = ""

    def said(self) -> str:
        """What failed and what was expected, on one line."""
        return f"{self.what}; expected {self.expected}" if self.expected else self.what

    def one_line(self) -> str:
        """All parts on one line, for conditions, Events and log lines."""
        return " ".join(to_do(self.said(), self.remedy).split())

    @classmethod
    def of(cls, error: UserError) -> CheckTrouble:
        """The trouble with the error's three parts."""
        return cls(what=error.what, expected=error.expected, remedy=error.remedy)


class UnpassedDevice(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One that did not pass. ``uuid`` is a GPU's or a MIG device's, ``gpu`` the GPU's; ``name`` for people. ``index``
    is a GPU's, None of others and from an agent that is older than this field.
    """

    uuid: str
    gpu: str = ""
    name: str = ""
    index: int | None = None
    trouble: CheckTrouble

    @property
    def short_name(self) -> str:
        """For people: ``GPU 3``, the name where no index is known."""
        return f"GPU {self.index}" if self.index is not None else self.name

    @property
    def is_gpu(self) -> bool:
        """False for a MIG device, and for a GPU of the bus that the driver does not have."""
        return self.uuid == self.gpu and not self.uuid.startswith("pci:")


class UnpassedCheck(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One that did not pass: ``status`` is failed or waiting. ``trouble`` concerns the node, ``devices`` only them;
    ``more`` of them are not named for want of room.
    """

    check: str
    status: str
    trouble: CheckTrouble | None = None
    devices: tuple[UnpassedDevice, ...] = ()
    more: int = 0


class ValidationReport(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """``checks`` in the order in which a node becomes ready; ``boot`` is the ID of the boot in which they were made."""

    version: int
    boot: str = ""
    checks: tuple[UnpassedCheck, ...] = ()

    @property
    def failed(self) -> UnpassedCheck | None:
        """The first that failed, which the condition names."""
        return next((check for check in self.checks if check.status == FAILED), None)


def report(checks: tuple[UnpassedCheck, ...], boot: str = "") -> ValidationReport:
    """A report that is short by construction."""
    return ValidationReport(
        version=VERSION, boot=one_line(boot, MAX_BOOT), checks=tuple(map(_short, checks[:MAX_CHECKS]))
    )  # fmt: skip


def _short(check: UnpassedCheck) -> UnpassedCheck:
    devices = check.devices[:MAX_DEVICES]
    return msgspec.structs.replace(
        check,
        check=one_line(check.check, MAX_TEXT),
        status=one_line(check.status, MAX_TEXT),
        trouble=_cut(check.trouble) if check.trouble is not None else None,
        devices=tuple(
            UnpassedDevice(
                uuid=_line(device.uuid),
                gpu=_line(device.gpu),
                name=_line(device.name),
                index=device.index,
                trouble=_cut(device.trouble),
            )
            for device in devices
        ),
        more=max(0, check.more) + len(check.devices) - len(devices),
    )


def _cut(trouble: CheckTrouble) -> CheckTrouble:
    texts = {name: _line(getattr(trouble, name)) for name in ("what", "expected", "remedy", "problem")}
    return msgspec.structs.replace(trouble, **texts)


def _line(text: str) -> str:
    return one_line(text, MAX_TEXT)


def encode(report: ValidationReport) -> str:
    """One line of JSON with sorted keys."""
    return msgspec.json.encode(report, order="sorted").decode()


def decode(text: str) -> ValidationReport | None:
    """None for what is no report, or one of a version that is not known. All text in a report is printable."""
    decoded = typed.read(text, ValidationReport, most=MAX_BYTES)
    return report(decoded.checks, decoded.boot) if decoded is not None and decoded.version == VERSION else None


def of_node(annotations: Mapping[str, str]) -> ValidationReport | None:
    """The report in a Node's annotations; None when there is none that can be read."""
    text = annotations.get(names.VALIDATION_ANNOTATION)
    return decode(text) if text is not None else None
