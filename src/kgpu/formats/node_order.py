"""What the operator orders an agent to do for a node operation, and the agent's answer: two Node annotations.

The operator alone writes the order (``kgpu.dev/operation``), the agent alone the answer
(``kgpu.dev/operation-report``), each one JSON object. A GPU that is to be reset passes these steps: ``withdraw``, it is
offered to no pod, and the answer names the pods that still hold it; ``release``, the agent has closed the driver's
library, as a reset needs a GPU that no program has open; ``resume``, the agent has opened it again and says how the
GPU is. Each step includes the ones before, but ``resume`` ends ``release``. Where the driver itself is exchanged, all
GPUs are meant: the order names none and begins with ``release``. Where MIG slices are changed, the order has the
``layouts`` from its first step on, and before ``resume`` comes ``change``: the agent cuts the GPUs, and the answer has
the ``result``. Without an order, or with one of another boot,
everything is as usual.

Both come from outside, so readers trust their shape only after decoding. An order or answer in a version that a reader
doesn't know, or that is malformed, is None to it, as one that is not there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from kgpu.base import typed
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.mig_request import MigLayout, are_layouts

VERSION: Final = 1
MAX_GPUS: Final = 16
MAX_HOLDERS: Final = 64
MAX_ID: Final = 100
MAX_NAME: Final = 253
MAX_TEXT: Final = 300
MAX_BYTES: Final = 32 << 10


class OrderStep(enum.StrEnum):
    """What the agent has to do, in order."""

    WITHDRAW = "withdraw"
    RELEASE = "release"
    CHANGE = "change"
    RESUME = "resume"


class NodeOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``id`` is the act's, which is obeyed once; ``boot`` is the boot that it is for; ``gpus`` are UUIDs.
    ``reset``: the act says that it has reset them, so what a reset cures is over (of the step ``resume`` alone).
    ``exchange``: the driver itself is exchanged for another, without ``gpus``. ``layouts``: their MIG slices are to be
    these; ``released``: the driver stays released during the step ``change``.
    """

    version: int
    id: str
    boot: str
    step: OrderStep
    gpus: tuple[str, ...] = ()
    reset: bool = False
    exchange: bool = False
    layouts: tuple[MigLayout, ...] = ()
    released: bool = False


class ChangeResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What has come of the step ``change``: done, or why not. ``lost``: the GPU is not as it was before either."""

    done: bool
    text: str = ""
    lost: bool = False


class HolderPod(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """A pod to which the kubelet has given one of the GPUs, or a part of it."""

    namespace: str
    name: str


class OrderedGpu(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A GPU of the order, by a reading that is newer than the step. ``problem`` is why it takes no work, "" if it
    does; ``pci`` is its address, "" if the driver doesn't list it.
    """

    uuid: str
    pci: str = ""
    problem: str = ""


class OrderAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``step`` is in force for the order ``id``. ``waits`` is why it is not, and ``refused`` why it never will be, ""
    otherwise. ``holders`` are known from the kubelet; ``more`` are not named for want of room. ``elsewhere`` are the
    pods that have other devices of this node; None where they are too many, or the agent's version does not tell.
    ``driver`` is the release that is loaded after an exchange, by a reading that is newer than the step ``resume``.
    ``result`` is what has come of the step ``change``, None while it is under way.
    """

    version: int
    id: str
    step: OrderStep
    waits: str = ""
    refused: str = ""
    holders: tuple[HolderPod, ...] = ()
    more: int = 0
    elsewhere: tuple[HolderPod, ...] | None = None
    gpus: tuple[OrderedGpu, ...] = ()
    driver: str = ""
    result: ChangeResult | None = None

    def fulfils(self, act: str, step: OrderStep) -> bool:
        """Whether this step of the act is in force."""
        return self.id == act and self.step is step and not (self.waits or self.refused)


def order(*, act: str, boot: str, step: OrderStep, gpus: tuple[str, ...], reset: bool = False) -> NodeOrder:
    """An order in this version."""
    return NodeOrder(version=VERSION, id=act, boot=boot, step=step, gpus=gpus, reset=reset)


def change_order(
    *, act: str, boot: str, step: OrderStep, layouts: tuple[MigLayout, ...], released: bool = False,
    reset: bool = False,
) -> NodeOrder:  # fmt: skip
    """An order in this version for a change of MIG slices. The layouts are in every step: by them the agent knows that
    instances are no reason to refuse.
    """
    gpus = tuple(layout.gpu for layout in layouts)
    return NodeOrder(
        version=VERSION, id=act, boot=boot, step=step, gpus=gpus, layouts=layouts, reset=reset,
        released=released and step is OrderStep.CHANGE,
    )  # fmt: skip


def exchange_order(*, act: str, boot: str, step: OrderStep) -> NodeOrder:
    """An order in this version for an exchange of the driver."""
    return NodeOrder(version=VERSION, id=act, boot=boot, step=step, exchange=True)


def answer(
    given: NodeOrder, *, waits: str = "", refused: str = "", holders: tuple[HolderPod, ...] = (),
    elsewhere: tuple[HolderPod, ...] | None = None, gpus: tuple[OrderedGpu, ...] = (), driver: str = "",
    result: ChangeResult | None = None,
) -> OrderAnswer:  # fmt: skip
    """The answer to an order, short by construction."""
    named, others = tuple(sorted(set(holders))), tuple(sorted(set(elsewhere or ())))
    return OrderAnswer(
        version=VERSION, id=given.id, step=given.step, waits=one_line(waits, MAX_TEXT),
        refused=one_line(refused, MAX_TEXT), holders=named[:MAX_HOLDERS], more=max(0, len(named) - MAX_HOLDERS),
        elsewhere=None if elsewhere is None or len(others) > MAX_HOLDERS else others,
        gpus=tuple(_short(gpu) for gpu in gpus[:MAX_GPUS]), driver=one_line(driver, MAX_ID),
        result=_short_result(result),
    )  # fmt: skip


def encode(document: NodeOrder | OrderAnswer) -> str:
    """One line of JSON with sorted keys."""
    return msgspec.json.encode(document, order="sorted").decode()


def read_order(annotations: Mapping[str, str]) -> NodeOrder | None:
    """The order in a Node's annotations, None without one that can be read."""
    given = _read(annotations, names.OPERATION_ANNOTATION, NodeOrder)
    if given is None or len(given.gpus) > MAX_GPUS or len(set(given.gpus)) < len(given.gpus):
        return None
    if given.exchange is bool(given.gpus) or (given.exchange and given.step is OrderStep.WITHDRAW):
        return None
    cut = {layout.gpu for layout in given.layouts}
    if (given.step is OrderStep.CHANGE and not cut) or (cut and (cut != set(given.gpus) or given.exchange)):
        return None
    if not are_layouts(given.layouts):
        return None
    texts = (given.id, given.boot, *given.gpus)
    return given if all(text and text == one_line(text, MAX_ID) for text in texts) else None


def read_answer(annotations: Mapping[str, str]) -> OrderAnswer | None:
    """The answer in a Node's annotations, None without one that can be read. All text in it is printable."""
    given = _read(annotations, names.OPERATION_REPORT_ANNOTATION, OrderAnswer)
    if given is None:
        return None
    return msgspec.structs.replace(
        given, id=one_line(given.id, MAX_ID), waits=one_line(given.waits, MAX_TEXT),
        refused=one_line(given.refused, MAX_TEXT), holders=_short_pods(given.holders), more=max(0, given.more),
        elsewhere=None if given.elsewhere is None else _short_pods(given.elsewhere),
        gpus=tuple(_short(gpu) for gpu in given.gpus[:MAX_GPUS]), driver=one_line(given.driver, MAX_ID),
        result=_short_result(given.result),
    )  # fmt: skip


_Document = TypeVar("_Document", NodeOrder, OrderAnswer)


def _read(annotations: Mapping[str, str], key: str, kind: type[_Document]) -> _Document | None:
    document = typed.read(annotations.get(key, ""), kind, most=MAX_BYTES)
    return document if document is not None and document.version == VERSION else None


def _short_pods(pods: tuple[HolderPod, ...]) -> tuple[HolderPod, ...]:
    return tuple(
        HolderPod(namespace=one_line(pod.namespace, MAX_NAME), name=one_line(pod.name, MAX_NAME))
        for pod in pods[:MAX_HOLDERS]
    )


def _short_result(result: ChangeResult | None) -> ChangeResult | None:
    return None if result is None else msgspec.structs.replace(result, text=one_line(result.text, MAX_TEXT))


def _short(gpu: OrderedGpu) -> OrderedGpu:
    return OrderedGpu(
        uuid=one_line(gpu.uuid, MAX_ID), pci=one_line(gpu.pci, MAX_ID), problem=one_line(gpu.problem, MAX_TEXT)
    )
