"""Which control daemons a node needs, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.mps.model import DaemonSpec, MpsOrder, MpsShare, SharedGpu
from kgpu.mps.plan import plan, stays

ROOT = "/run/nvidia/mps"
GPU = "nvidia.com/gpu"
A = SharedGpu(uuid="GPU-a", index=0, replicas=4, memory_mib=81920, capability=(9, 0))
B = replace(A, uuid="GPU-b", index=1)


def order(*gpus: SharedGpu, resource: str = GPU, root: str = ROOT) -> MpsOrder:
    return MpsOrder(root=root, shares=(MpsShare(resource=resource, gpus=gpus),))


@pytest.mark.parametrize(
    ("gpus", "visible", "commands"),
    [
        ((A,), "GPU-a", ["set_default_device_pinned_mem_limit 0 20480M", "set_default_active_thread_percentage 25"]),
        (  # numbered in the order in which the daemon sees them, whatever order they come in
            (B, A), "GPU-a,GPU-b",
            ["set_default_device_pinned_mem_limit 0 20480M", "set_default_device_pinned_mem_limit 1 20480M",
             "set_default_active_thread_percentage 25"],
        ),
        (  # a GPU alone is number 0 although the driver has it as 1
            (B,), "GPU-b",
            ["set_default_device_pinned_mem_limit 0 20480M", "set_default_active_thread_percentage 25"],
        ),
        (  # the limits are each GPU's own; threads have one default
            (A, replace(B, replicas=10, memory_mib=24576)), "GPU-a,GPU-b",
            ["set_default_device_pinned_mem_limit 0 20480M", "set_default_device_pinned_mem_limit 1 2457M",
             "set_default_active_thread_percentage 10"],
        ),
        (  # unknown memory: no limit, and the other's keeps its number
            (replace(A, memory_mib=None), B), "GPU-a,GPU-b",
            ["set_default_device_pinned_mem_limit 1 20480M", "set_default_active_thread_percentage 25"],
        ),
        ((replace(A, replicas=48),), "GPU-a",
         ["set_default_device_pinned_mem_limit 0 1706M", "set_default_active_thread_percentage 2"]),
        ((replace(A, replicas=3),), "GPU-a",
         ["set_default_device_pinned_mem_limit 0 27306M", "set_default_active_thread_percentage 33"]),
    ],
)  # fmt: skip
def test_a_daemon_and_what_it_is_told(gpus: tuple[SharedGpu, ...], visible: str, commands: list[str]) -> None:
    made = plan(order(*gpus))
    (daemon,) = made.daemons
    assert (daemon.visible, list(daemon.commands), made.advice) == (visible, commands, ())


def test_the_paths_are_the_replaced_programs() -> None:
    (daemon,) = plan(order(A, root="/run/nvidia/mps/")).daemons
    assert daemon.pipe == "/run/nvidia/mps/nvidia.com/gpu/pipe"
    assert daemon.log == "/run/nvidia/mps/nvidia.com/gpu/log"
    assert daemon.started == "/run/nvidia/mps/nvidia.com/gpu/.started"


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (replace(A, mig=True), "the MIG mode of GPU 0 is on"),
        (replace(A, capability=(3, 0)), "GPU 0 has compute capability 3.0"),
        (replace(A, replicas=49), "GPU 0 has 49 shares, and its MPS server takes 48 clients"),
        (replace(A, replicas=17, capability=(6, 1)), "GPU 0 has 17 shares, and its MPS server takes 16 clients"),
        (replace(A, memory_mib=3), "GPU 0 has 3 MiB for 4 shares"),
    ],
)
def test_a_gpu_that_can_not_be_shared_is_told_with_its_row(gpu: SharedGpu, words: str) -> None:
    made = plan(order(B, gpu))
    (advice,) = made.advice
    assert made.daemons == ()
    assert words in advice.what
    assert (advice.subject, advice.reason) == (GPU, "MpsImpossible")
    assert advice.why.startswith("expected ")
    assert advice.remedy


@pytest.mark.parametrize(
    ("replicas", "capability"), [(48, (7, 0)), (48, (7, 5)), (48, None), (16, (6, 1)), (2, (3, 5))]
)
def test_as_many_shares_as_a_server_takes_clients(replicas: int, capability: tuple[int, int] | None) -> None:
    # The replaced program counts Volta (7.0) among the GPUs with 16 clients.
    assert plan(order(replace(A, replicas=replicas, capability=capability))).daemons


def test_a_resource_that_is_refused_takes_no_other_along() -> None:
    shares = (MpsShare(resource="nvidia.com/b", gpus=(B,)), MpsShare(resource="nvidia.com/a", gpus=(A,)))
    made = plan(MpsOrder(root=ROOT, shares=shares))
    assert [daemon.resource for daemon in made.daemons] == ["nvidia.com/a", "nvidia.com/b"]
    broken = (shares[0], MpsShare(resource="nvidia.com/a", gpus=(replace(A, mig=True),)))
    assert [daemon.resource for daemon in plan(MpsOrder(root=ROOT, shares=broken)).daemons] == ["nvidia.com/b"]


def test_a_gpu_under_two_names_is_served_once() -> None:
    shares = (MpsShare(resource="nvidia.com/a", gpus=(A,)), MpsShare(resource="nvidia.com/b", gpus=(A, B)))
    made = plan(MpsOrder(root=ROOT, shares=shares))
    assert [daemon.resource for daemon in made.daemons] == ["nvidia.com/a"]
    assert "GPU 0 is shared as nvidia.com/a too" in made.advice[0].what


@pytest.mark.parametrize(("bytes_of_path", "works"), [(107, True), (108, False)])
def test_the_path_of_a_socket_has_a_longest(bytes_of_path: int, works: bool) -> None:
    below = f"/{GPU}/pipe/control_privileged"
    made = plan(order(A, root="/" + "r" * (bytes_of_path - len(below) - 1)))
    assert bool(made.daemons) is works
    assert any("too long" in advice.what for advice in made.advice) is not works


def test_without_mps_there_is_nothing() -> None:
    made = plan(MpsOrder())
    assert (made.daemons, made.advice) == ((), ())


@pytest.mark.parametrize(
    ("wanted", "present", "goes_on"),
    [
        ("ab", "ab", True),
        ("a", "a", True),  # b is lost: the clients of a go on
        ("a", "ab", False),  # b is there, and no longer shared
        ("abc", "abc", False),  # c has come
        ("", "", True),  # nothing can be read
        ("", "ab", False),
        ("ac", "ac", False),
    ],
)
def test_a_daemon_goes_on_when_a_gpu_is_lost(wanted: str, present: str, goes_on: bool) -> None:
    running = DaemonSpec(root=ROOT, resource=GPU, gpus=("a", "b"), limits_mib=(5, 5))
    spec = replace(running, gpus=tuple(wanted), limits_mib=()) if wanted else None
    assert stays(running, spec, set(present)) is goes_on
