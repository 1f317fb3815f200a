"""Whether GPUs may be reset: what is refused, and with which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.base.errors import HostError
from kgpu.host.device_holders import DeviceHolder
from kgpu.operations import reset_checks
from kgpu.operations.reset_checks import MachineGpus, ResettableGpu, besides_persistence, check_machine, check_unused

UUIDS = tuple(f"GPU-{number:08x}-3a75-510f-9224-fe9aed5a6332" for number in range(4))
A100, H100, V100 = 0x20B2, 0x2330, 0x1DB5


def gpu(number: int, **about: object) -> ResettableGpu:
    made = ResettableGpu(uuid=UUIDS[number], bus_id=f"0000:1{number}:00.0", minor=number, pci_device=H100)
    return replace(made, **about)


def machine(*gpus: ResettableGpu, switched: bool = False, fabric_manager: bool = False) -> MachineGpus:
    return MachineGpus(gpus={one.uuid: one for one in gpus}, switched=switched, fabric_manager=fabric_manager)


@pytest.mark.parametrize(
    "uuids", [(), ("GPU-1",), (UUIDS[0], UUIDS[0]), (UUIDS[0].upper(),), ("0",), ("all",), (UUIDS[0] + "\n",),
              (f"{UUIDS[0]},{UUIDS[1]}",), ("--help",), tuple(f"GPU-{n:08x}-0000-0000-0000-000000000000" for n in range(17))],
)  # fmt: skip
def test_only_uuids_each_once(uuids: tuple[str, ...]) -> None:
    with pytest.raises(HostError):
        reset_checks.check_uuids(uuids)
    reset_checks.check_uuids(UUIDS)


def test_a_gpu_has_to_be_listed() -> None:
    check_machine(UUIDS[:1], machine(gpu(0), gpu(1)))
    with pytest.raises(HostError, match=f"the driver does not list GPU {UUIDS[2]}"):
        check_machine([UUIDS[0], UUIDS[2]], machine(gpu(0), gpu(1)))


def test_instances_would_be_lost() -> None:
    with pytest.raises(HostError, match="has MIG instances"):
        check_machine(UUIDS[:2], machine(gpu(0), gpu(1, instances=True)))
    check_machine(UUIDS[:1], machine(gpu(0), gpu(1, instances=True)))


def test_instances_that_cant_be_read_are_none_only_where_the_driver_asks_for_a_reset() -> None:
    with pytest.raises(HostError, match="can't be read"):
        check_machine(UUIDS[:1], machine(gpu(0, instances=None)))
    check_machine(UUIDS[:1], machine(gpu(0, instances=None, needs_reset=True)))


@pytest.mark.parametrize(
    ("device", "switched", "fabric_manager", "chosen", "refused"),
    [
        (A100, True, False, 1, True),
        (A100, True, False, 3, True),
        (A100, True, False, 4, False),  # all of them together
        (A100, True, True, 1, False),
        (A100, False, False, 1, False),  # direct NVLink or PCIe
        (H100, True, False, 1, False),
        (V100, True, False, 4, False),  # nvidia-smi sees to it that none is missing
    ],
)
def test_nvswitch(device: int, switched: bool, fabric_manager: bool, chosen: int, refused: bool) -> None:
    gpus = (gpu(number, pci_device=device) for number in range(4))
    found = machine(*gpus, switched=switched, fabric_manager=fabric_manager)
    if refused:
        with pytest.raises(HostError, match="Fabric Manager does not run"):
            check_machine(UUIDS[:chosen], found)
    else:
        check_machine(UUIDS[:chosen], found)


def test_holders_are_named_and_not_without_end() -> None:
    many = [
        DeviceHolder(pid=pid, program="train", nodes=frozenset(), pod="a-b" if pid == 1 else "") for pid in range(9)
    ]
    with pytest.raises(
        HostError, match=r"in use by train \(pid 0\), train \(pid 1\) of pod a-b, .* and 3 more\n"
    ) as told:
        check_unused(many)
    assert "pid 6" not in told.value.what
    check_unused(())


def test_the_daemon_of_persistence_mode_is_waited_for() -> None:
    daemon = DeviceHolder(pid=1, program="nvidia-persiste", nodes=frozenset())
    other = DeviceHolder(pid=2, program="nvidia-smi", nodes=frozenset())
    assert besides_persistence([daemon, other]) == (other,)


def test_persistence_is_switched_where_it_is_on() -> None:
    found = machine(gpu(0, persistence=True), gpu(1), gpu(2, persistence=None), gpu(3, persistence=True))
    assert reset_checks.persistent(UUIDS[:3], found) == UUIDS[:1]


def test_a_gpu_that_says_nothing_has_the_mode_of_all_others() -> None:
    silent = gpu(2, persistence=None)
    assert reset_checks.persistent(UUIDS[2:3], machine(silent, gpu(0, persistence=True))) == UUIDS[2:3]
    assert reset_checks.persistent(UUIDS[2:3], machine(silent, gpu(0))) == ()
    assert reset_checks.persistent(UUIDS[2:3], machine(silent)) == ()
