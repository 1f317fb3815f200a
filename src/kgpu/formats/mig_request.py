"""What a node's MIG manager, the operator and their users tell each other of a change of MIG slices.

Three Node annotations, each one JSON object. The node's agent alone writes the request (``kgpu.dev/mig-request``): how
which GPUs are to be cut. The operator makes a NodeOperation of it, and alone writes how far that is
(``kgpu.dev/mig-operation``). The agent alone writes what has become of the label ``nvidia.com/mig.config`` in words
(``kgpu.dev/mig-report``), beside the state label that the replaced program's users know. For AMD's label
``dcm.amd.com/gpu-config-profile`` request and report are ``kgpu.dev/partition-request`` and
``kgpu.dev/partition-report``.

All come from outside, so readers trust their shape only after decoding. One in a version that a reader doesn't know, or
that is malformed, is None to it, as one that is not there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from kgpu.base import typed
from kgpu.base.printable import one_line
from kgpu.formats import names

VERSION: Final = 1
MAX_GPUS: Final = 16
MAX_PROFILES: Final = 16
MAX_COUNT: Final = 64
MAX_ID: Final = 64
MAX_NAME: Final = 100
MAX_TEXT: Final = 600
MAX_PODS: Final = 32
MAX_POD: Final = 320
"""Characters of a pod's namespace and name."""
MAX_BYTES: Final = 16 << 10


class MigLabelState(enum.StrEnum):
    """The values of ``nvidia.com/mig.config.state``."""

    PENDING = "pending"
    REBOOTING = "rebooting"
    SUCCESS = "success"
    FAILED = "failed"


class MigLayout(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one GPU is to be: ``devices`` are counts by profile, none without MIG. Of a GPU that is parted by modes they
    are the name of its mode, with the count 1.
    """

    gpu: str
    enabled: bool
    devices: dict[str, int] = msgspec.field(default_factory=dict)


class MigRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A wish: ``id`` is another for each time that a person asks, ``config`` the name in the label, ``layouts`` the
    GPUs that have to change. ``release``: one of them needs a reset, so that no program may have it open.
    """

    version: int
    id: str
    config: str
    layouts: tuple[MigLayout, ...]
    release: bool = False


class MigProgress(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far the operation for the request ``id`` is: its phase and reason, and its message for people."""

    version: int
    id: str
    operation: str
    phase: str
    reason: str = ""
    message: str = ""


class MigReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What has become of ``config``: ``reason`` is one CamelCase word, ``message`` one line with what to do. ``pods``
    (namespace/name) hold parts of GPUs that somebody has taken away by hand.
    """

    version: int
    config: str
    state: MigLabelState
    reason: str = ""
    message: str = ""
    pods: tuple[str, ...] = ()


def request(*, key: str, config: str, layouts: tuple[MigLayout, ...], release: bool = False) -> MigRequest:
    """The request ``key`` in this version. Raises ValueError for more GPUs or profiles than a reader takes."""
    made = MigRequest(version=VERSION, id=key, config=config, layouts=layouts, release=release)
    if not is_sound(made):
        raise ValueError(f"no reader takes this request: {made}")
    return made


def progress(*, key: str, operation: str, phase: str, reason: str = "", message: str = "") -> MigProgress:
    """The progress of the request ``key`` in this version, short by construction."""
    return MigProgress(
        version=VERSION, id=key, operation=operation, phase=phase, reason=one_line(reason, MAX_NAME),
        message=one_line(message, MAX_TEXT),
    )  # fmt: skip


def report(
    *, config: str, state: MigLabelState, reason: str = "", message: str = "", pods: Sequence[str] = ()
) -> MigReport:  # fmt: skip
    """A report in this version, short by construction."""
    return MigReport(
        version=VERSION, config=one_line(config, MAX_NAME), state=state, reason=one_line(reason, MAX_NAME),
        message=one_line(message, MAX_TEXT), pods=tuple(one_line(pod, MAX_POD) for pod in pods[:MAX_PODS]),
    )  # fmt: skip


def encode(document: MigRequest | MigProgress | MigReport) -> str:
    """One line of JSON with sorted keys."""
    return msgspec.json.encode(document, order="sorted").decode()


def is_sound(given: MigRequest) -> bool:
    """Whether the request's texts and counts are within bounds, and each GPU is named once."""
    texts = ((given.id, MAX_ID), (given.config, MAX_NAME))
    return (
        bool(given.layouts)
        and all(text and text == one_line(text, most) for text, most in texts)
        and are_layouts(given.layouts)
    )


def are_layouts(layouts: Sequence[MigLayout]) -> bool:
    """Whether the layouts' texts and counts are within bounds, and each GPU is named once."""
    uuids = [layout.gpu for layout in layouts]
    return len(uuids) <= MAX_GPUS and len(set(uuids)) == len(uuids) and all(map(_is_layout, layouts))


def _is_layout(layout: MigLayout) -> bool:
    profiles = layout.devices
    if len(profiles) > MAX_PROFILES or (profiles and not layout.enabled):
        return False
    named = all(name and name == one_line(name, MAX_NAME) for name in (layout.gpu, *profiles))
    return named and all(0 <= count <= MAX_COUNT for count in profiles.values())


def read_request(annotations: Mapping[str, str], key: str = names.MIG_REQUEST_ANNOTATION) -> MigRequest | None:
    """The request in a Node's annotations, None without one that can be read."""
    given = _read(annotations, key, MigRequest)
    return given if given is not None and is_sound(given) else None


def read_progress(annotations: Mapping[str, str]) -> MigProgress | None:
    """The operation's progress in a Node's annotations, None without one that can be read; all text is printable."""
    given = _read(annotations, names.MIG_OPERATION_ANNOTATION, MigProgress)
    if given is None:
        return None
    return progress(
        key=one_line(given.id, MAX_ID), operation=one_line(given.operation, MAX_NAME), phase=one_line(given.phase, 20),
        reason=given.reason, message=given.message,
    )  # fmt: skip


def read_report(annotations: Mapping[str, str], key: str = names.MIG_REPORT_ANNOTATION) -> MigReport | None:
    """The agent's report in a Node's annotations, None without one that can be read; all text is printable."""
    given = _read(annotations, key, MigReport)
    if given is None:
        return None
    return report(
        config=given.config, state=given.state, reason=given.reason, message=given.message, pods=given.pods
    )  # fmt: skip


_Document = TypeVar("_Document", MigRequest, MigProgress, MigReport)


def _read(annotations: Mapping[str, str], key: str, kind: type[_Document]) -> _Document | None:
    document = typed.read(annotations.get(key, ""), kind, most=MAX_BYTES)
    return document if document is not None and document.version == VERSION else None
