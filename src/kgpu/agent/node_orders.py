"""What an order for an operation on this node's GPUs means here, and what is answered. Pure.

An order is refused for good where a reset would do harm or can't be done. Its steps only go forward: once the driver
was opened again, by order or after ``LONGEST`` seconds, it is not released for the same act any more. The answer on the
Node is this agent's memory: one that starts in the middle goes on from there, and what has come of a change of slices
is said again instead of done again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgpu.formats import names
from kgpu.formats.node_order import ChangeResult, HolderPod, NodeOrder, OrderAnswer, OrderedGpu, OrderStep
from kgpu.hw.port import Accelerator, Inventory, Problem, Reading
from kgpu.hw.verdicts import Verdicts

if TYPE_CHECKING:
    from kgpu.kubelet.pod_resources import Holding

LONGEST: Final = 900.0
"""The most seconds that an agent stays without the driver for one reset."""
LONGEST_EXCHANGE: Final = 7200.0
"""The same while the driver is exchanged: it may have to be compiled."""
OVER: Final = "the driver is in use again"
TOO_LONG: Final = f"{OVER}: it was released for as long as it may be"
ONCE: Final = f"{OVER}: an act may have it released once"
UNCHECKED: Final = "the GPUs are not withdrawn yet"
PENDING: Final = ("remapped_rows_pending", "retired_pages_pending")
_ASKS: Final = frozenset({"reset", "reboot", "drain", "drain-reset", "imex"})
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{36})/[0-9/]{1,9}", re.ASCII)
_NUMBER: Final = re.compile(r"(?:nvidia|gpu-)([0-9]{1,4})(?:[/-].*)?", re.ASCII)
"""A device of claims of AMD GPUs: the numbers of its card and its renderD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An order and how far this agent is. Times are seconds of the monotonic clock.

    ``checked``: its GPUs are here and may be reset; an exchange needs no check. ``released`` is when the driver was let
    go of. ``over`` is why it is in use again, and stays so, "" before. ``told``: health knows that the GPUs were reset.
    ``result`` is what has come of the change of their slices, None before.
    """

    order: NodeOrder
    refused: str = ""
    checked: bool = False
    released: float | None = None
    over: str = ""
    told: bool = False
    result: ChangeResult | None = None

    @property
    def withdraws(self) -> bool:
        """Whether the GPUs are offered to no pod."""
        return self.checked and not self.refused

    @property
    def releases(self) -> bool:
        """Whether nothing here may open the driver."""
        return self.withdraws and _wants_release(self.order) and not self.over

    @property
    def frees(self) -> bool:
        """Whether GPUs are to be cut, now or soon, so that nobody may be on them."""
        return (
            self.withdraws and bool(self.order.layouts) and self.order.step is not OrderStep.RESUME and not self.result
        )

    @property
    def changes(self) -> bool:
        """Whether the GPUs are to be cut now."""
        return self.withdraws and self.order.step is OrderStep.CHANGE and self.result is None


def heed(order: NodeOrder | None, before: Standing | None, own: OrderAnswer | None, now: float) -> Standing | None:
    """How things stand with the order at ``now``; ``own`` is this agent's answer on the Node."""
    if order is None:
        return None
    same = before is not None and (before.order.id, before.order.gpus) == (order.id, order.gpus)
    standing = replace(before, order=order) if before is not None and same else _begun(order, before, own)
    released = standing.released
    if standing.releases and released is None:
        released = now
    longest = LONGEST_EXCHANGE if order.exchange else LONGEST
    late = released is not None and now - released >= longest
    opened = order.step is OrderStep.RESUME or (released is not None and not _wants_release(order))
    over = standing.over or (TOO_LONG if late else ONCE if opened else "")
    return replace(standing, released=released, over=over)


def _wants_release(order: NodeOrder) -> bool:
    return order.step is OrderStep.RELEASE or (order.step is OrderStep.CHANGE and order.released)


def _begun(order: NodeOrder, before: Standing | None, own: OrderAnswer | None) -> Standing:
    """An order that this process has not seen: an agent before it may have, and its answer says how far it was."""
    if own is None or own.id != order.id or (before is not None and before.order.id == order.id):
        return Standing(order=order, checked=order.exchange)
    return Standing(
        order=order, refused=own.refused, checked=not (own.refused or own.waits.startswith(UNCHECKED)),
        over=ONCE if own.step is OrderStep.RESUME else own.waits if own.waits.startswith(OVER) else "",
        told=own.step is OrderStep.RESUME, result=own.result if own.step is OrderStep.CHANGE else None,
    )  # fmt: skip


def vendor_for(order: NodeOrder) -> str:
    """Whose GPUs the order is about."""
    if not order.layouts:
        return names.NVIDIA
    from kgpu.formats.partition_mode import by_modes

    return names.AMD if by_modes(order.layouts) else names.NVIDIA


def unfit(order: NodeOrder, inventory: Inventory) -> str:
    """Why the order can never be carried out here, "" if it can."""
    wanted = vendor_for(order)
    if inventory.vendor != wanted:
        done = "be parted" if order.layouts else "be reset"
        title = wanted.upper()
        return f"only {title} GPUs can {done} by kgpu, and this node's are of {inventory.vendor}"
    listed = {gpu.uuid: gpu for gpu in inventory.accelerators}
    for uuid in order.gpus:
        gpu = listed.get(uuid)
        if gpu is None or _is_missing(gpu):
            lists = "amd-smi list" if wanted == names.AMD else "nvidia-smi -L"
            return f"this node's driver lists no GPU {uuid}; take its UUID from `{lists}` there"
        if gpu.partitions and not order.layouts:
            profiles = ", ".join(dict.fromkeys(part.profile for part in gpu.partitions))
            return (
                f"GPU {uuid} has MIG instances ({profiles}), which a reset deletes and nothing makes again; delete "
                f"them first: the Node's label {names.MIG_CONFIG_LABEL}=all-disabled where a MIG manager runs, else "
                "`nvidia-smi mig -dci` and `-dgi`"
            )
    return ""


def holders(order: NodeOrder, holdings: Iterable[Holding], inventory: Inventory | None) -> tuple[HolderPod, ...]:
    """The pods that have one of the GPUs, a replica of it or a part of it, by the kubelet's word.

    They are evicted, so a device counts only if it is known to be one of these. What a claim's device is in a name that
    is none of these forms, only its driver knows.
    """
    wanted = frozenset(order.gpus)
    found = {
        HolderPod(namespace=holding.namespace, name=holding.pod)
        for holding in holdings
        for device in holding.devices
        if gpu_of(device, holding.resource, inventory, known=wanted) in wanted
    }
    return tuple(sorted(found))


def stranded(holdings: Iterable[Holding], inventory: Inventory) -> tuple[HolderPod, ...]:
    """The pods that have a device of this node's vendor that is no GPU, and no part of one, any more."""
    from kgpu.hw.vendor import vendor_of

    counts, drivers = vendor_of(inventory.vendor).counts, names.DRA_DRIVERS - {names.DRA_GPU_DRIVER}
    found = {
        HolderPod(namespace=holding.namespace, name=holding.pod)
        for holding in holdings
        if counts(holding.resource) or holding.resource in drivers
        for device in holding.devices
        if not gpu_of(device, holding.resource, inventory)
    }
    return tuple(sorted(found))


def elsewhere(holders: Iterable[HolderPod], holdings: Iterable[Holding]) -> tuple[HolderPod, ...]:
    """The pods that have other devices than the ``holders``: the operator knows by them whom the kubelet has not named.

    A kubelet that has just started names pods only once it has heard of them from the API server.
    """
    pods = {HolderPod(namespace=holding.namespace, name=holding.pod) for holding in holdings}
    return tuple(sorted(pods - set(holders)))


def gpu_of(device: str, resource: str, inventory: Inventory | None, *, known: Collection[str] = ()) -> str:
    """The UUID of the GPU that the kubelet's ``device`` of a resource, or of a claim's driver, is or is a part of; ""
    if it is none of this node's, or of those ``known`` besides.
    """
    gpus = inventory.accelerators if inventory is not None else ()
    name = device.partition("::")[0]
    if old := _OLD_MIG.fullmatch(name):
        name = old[1]
    if name in known:
        return name
    for gpu in gpus:
        if name == gpu.uuid or any(part.uuid == name for part in gpu.partitions):
            return gpu.uuid
    if resource in names.DRA_DRIVERS - {names.DRA_GPU_DRIVER} and inventory is not None:
        return _claimed(resource, name, inventory)
    if not (resource == names.DRA_GPU_DRIVER or resource.startswith(f"{names.NVIDIA_DOMAIN}/")):
        return ""
    number = _NUMBER.fullmatch(name)
    return next((gpu.uuid for gpu in gpus if number is not None and gpu.minor == int(number[1])), "")


def _claimed(driver: str, device: str, inventory: Inventory) -> str:
    from kgpu.hw.claim_devices import claimed_unit  # only where such a claim is held

    unit = claimed_unit(driver, device, inventory)
    parts = {part.uuid: part.parent_uuid for gpu in inventory.accelerators for part in gpu.partitions}
    return parts.get(unit, unit)


def ordered_gpus(
    order: NodeOrder, inventory: Inventory, readings: Sequence[Reading], verdicts: Verdicts | None, *, since: float
) -> tuple[OrderedGpu, ...]:
    """Each GPU by a reading; a verdict of health counts if it is of after ``since`` (seconds since boot)."""
    listed = {gpu.uuid: gpu for gpu in inventory.accelerators}
    numbers = {reading.uuid: reading.numbers for reading in readings if reading.whole}
    return tuple(
        OrderedGpu(
            uuid=uuid,
            pci=listed[uuid].pci_bus_id if uuid in listed else "",
            problem=_problem(listed.get(uuid), numbers.get(uuid, {})) or _judged(uuid, verdicts, since),
        )
        for uuid in order.gpus
    )


def unread_gpus(order: NodeOrder, why: str) -> tuple[OrderedGpu, ...]:
    """The GPUs while the driver can't be read."""
    return tuple(OrderedGpu(uuid=uuid, problem=f"the driver can't be read: {why}") for uuid in order.gpus)


def _problem(gpu: Accelerator | None, numbers: Mapping[str, float]) -> str:
    if gpu is None or _is_missing(gpu):
        return "the driver does not list it"
    if not gpu.usable:
        return "; ".join(finding.what for finding in gpu.findings)
    if gpu.recovery_action in _ASKS:
        return f"the driver asks for: {gpu.recovery_action}"
    pending = [key for key in PENDING if numbers.get(key, 0)]
    return f"{', '.join(pending)}: the driver has memory rows or pages to replace, by a reset" if pending else ""


def _judged(uuid: str, verdicts: Verdicts | None, since: float) -> str:
    if verdicts is None:  # nobody judges GPUs here
        return ""
    if verdicts.uptime < since:
        return "kgpu's health has not looked at it since"
    verdict = verdicts.by_uuid.get(uuid)
    return f"kgpu's health: {verdict.what} ({verdict.action})" if verdict is not None and verdict.withdraws else ""


def _is_missing(gpu: Accelerator) -> bool:
    return any(finding.problem is Problem.MISSING for finding in gpu.findings)
