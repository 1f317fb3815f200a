"""Each check's judgement: what is wrong is found, named, and does not touch what is well."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from kgpu.base.errors import HwError
from kgpu.hw.port import HardwareFinding, Problem
from kgpu.validator.checks import cuda, driver, plugin, toolkit
from kgpu.validator.checks.plugin import NodeResources
from kgpu.validator.cuda import CudaOutcome
from kgpu.validator.look import CdiName, PciGpu
from kgpu.validator.model import Status
from tests.validator.made import driver_facts, inventory, specs

NO_NVML = HwError("nvml init failed: ERROR_DRIVER_NOT_LOADED", "a loaded driver", "load it")


def lost(found, index=1):
    finding = HardwareFinding(
        subject="", problem=Problem.LOST, what="GPU is lost", expected="an answer", remedy="reset it"
    )
    gpus = tuple(replace(g, findings=(finding,)) if g.index == index else g for g in found.accelerators)
    return replace(found, accelerators=gpus)


def test_a_device_is_named_once() -> None:
    found = lost(inventory(2))
    gpu = found.accelerators[1]
    finding = structs.replace(gpu.findings[0], what="handle: GPU is lost", gpu=1)
    found = replace(found, accelerators=(found.accelerators[0], replace(gpu, findings=(finding,))))
    assert driver.judge(driver_facts(found), found, None).reason().startswith(f"GPU 1 ({gpu.name}): handle: GPU is")


def test_a_whole_driver_passes() -> None:
    found = inventory(2)
    result = driver.judge(driver_facts(found), found, None)
    assert result.status is Status.PASSED
    assert "2 GPUs enumerated, 2 on the PCI bus" in result.evidence


@pytest.mark.parametrize(
    ("changes", "error", "what", "remedy"),
    [
        ({"libraries": {"libnvidia-ml.so.1": "/x", "libcuda.so.1": ""}}, None, "libcuda.so.1 not found", "driver root"),
        ({"libraries": {"libcuda.so.1": ""}, "module": ""}, NO_NVML, "libcuda.so.1 not found", "install the NVIDIA"),
        ({"nodes": frozenset({"/dev/nvidiactl"})}, None, "/dev/nvidia-uvm", "nvidia-modprobe -u"),
        ({"nodes": frozenset()}, None, "/dev/nvidiactl", "nvidia-modprobe"),
        ({}, NO_NVML, "ERROR_DRIVER_NOT_LOADED", "load it"),
        ({"pci": (PciGpu(address="0000:07:00.0", driver="nouveau"),)}, NO_NVML, "nouveau", "blacklist"),
        ({"pci": (PciGpu(address="0000:07:00.0", driver="vfio-pci"),)}, NO_NVML, "vfio-pci", "workload.config"),
    ],
)
def test_causes_that_stop_the_whole_driver(changes, error, what, remedy) -> None:
    found = inventory(2)
    result = driver.judge(driver_facts(found, **changes), None if error else found, error)
    assert not result.ready
    assert result.trouble is not None
    assert (what in result.trouble.what, remedy in result.trouble.remedy) == (True, True), result.trouble


def test_missing_libraries_name_every_place_that_was_searched() -> None:
    found = inventory(1)
    result = driver.judge(driver_facts(found, libraries={"libcuda.so.1": ""}), found, None)
    assert result.trouble is not None
    assert "/usr/lib64, /lib64" in result.trouble.expected


def test_one_lost_gpu_fails_alone() -> None:
    found = lost(inventory(3))
    result = driver.judge(driver_facts(found), found, None)
    assert (result.status, result.ready) == (Status.FAILED, True)
    assert [one.name[:5] for one in result.failed_devices] == ["GPU 1"]


def test_a_gpu_of_the_bus_that_the_driver_lacks_is_named_by_its_address() -> None:
    found = inventory(2)
    facts = driver_facts(found)
    more = (
        *facts.pci,
        PciGpu(address="0000:c1:00.0", driver="nvidia"),
        PciGpu(address="0000:c2:00.0", driver="vfio-pci"),
    )
    result = driver.judge(replace(facts, pci=more), found, None)
    assert [one.name for one in result.failed_devices] == ["GPU at 0000:c1:00.0"]
    assert result.ready


def test_a_gpu_without_its_node_fails_alone() -> None:
    found = inventory(2)
    facts = driver_facts(found)
    result = driver.judge(replace(facts, nodes=facts.nodes - {"/dev/nvidia1"}), found, None)
    assert [one.trouble.what for one in result.failed_devices] == ["/dev/nvidia1 is not there"]


def test_a_driver_without_gpus_says_what_is_on_the_bus() -> None:
    found = inventory(2)
    result = driver.judge(driver_facts(found), replace(found, accelerators=()), None)
    assert result.trouble is not None
    assert "although 2 are on the PCI bus" in result.trouble.what


def test_a_gpu_in_mig_mode_without_slices_is_noted() -> None:
    found = inventory(2, mig=1)
    bare = replace(found.accelerators[0], partitions=())
    result = driver.judge(driver_facts(found), replace(found, accelerators=(bare, found.accelerators[1])), None)
    assert result.status is Status.PASSED
    assert any("MIG mode without slices" in note for note in result.notes)


def test_every_device_has_to_resolve() -> None:
    found = inventory(2, mig=2)
    assert toolkit.judge(specs(found), found, "containerd://2.1.4").status is Status.PASSED
    names = {name: one for name, one in specs(found).names.items() if name != "nvidia.com/gpu=0:1"}
    result = toolkit.judge(specs(found, names=names), found, "")
    assert [(one.name, one.status) for one in result.devices if one.status is not Status.PASSED] == [
        ("MIG 0:1 (1g.10gb)", Status.WAITING)
    ]
    assert result.ready


def test_no_spec_at_all_waits_and_says_how_to_make_one() -> None:
    found = inventory(1)
    result = toolkit.judge(specs(found, names={}), found, "")
    assert (result.status, result.ready) == (Status.WAITING, False)
    assert "kgpu cdi generate --output /var/run/cdi" in result.trouble.remedy


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (CdiName(file="/cdi/a.json", missing=("/usr/lib64/libcuda.so.550",)), "libcuda.so.550"),
        (CdiName(file="/cdi/a.json", twice=("/cdi/a.json", "/cdi/b.json")), "/cdi/b.json"),
    ],
)
def test_a_spec_that_is_wrong_for_one_device_fails_that_one(entry, word) -> None:
    found = inventory(2)
    result = toolkit.judge(specs(found, names={**specs(found).names, "nvidia.com/gpu=1": entry}), found, "")
    assert [word in one.trouble.what for one in result.failed_devices] == [True]
    assert result.ready


def test_a_stale_spec_of_the_plugin_does_not_stop_what_the_toolkit_wrote() -> None:
    found = inventory(1)
    stale = {
        f"k8s.device-plugin.nvidia.com/gpu={found.accelerators[0].uuid}": CdiName(file="/p.json", missing=("/old",))
    }
    assert toolkit.judge(specs(found, names={**stale, **specs(found).names}), found, "").status is Status.PASSED
    assert toolkit.judge(specs(found, names=stale), found, "").status is Status.FAILED


@pytest.mark.parametrize(
    ("runtime", "ready", "noted"),
    [
        ("containerd://2.1.4", True, False),
        ("containerd://1.7.22-k3s1", True, True),
        ("containerd://1.6.36", False, False),
        ("docker://27.3.1", False, False),
        ("cri-o://1.31.0", True, False),
        ("something else", True, False),
        ("", True, False),
    ],
)
def test_engines_that_know_cdi(runtime, ready, noted) -> None:
    found = inventory(1)
    result = toolkit.judge(specs(found), found, runtime)
    assert (result.ready, bool(result.notes)) == (ready, noted)


def outcome(**values) -> CudaOutcome:
    return CudaOutcome(**{"deadline": 5.0, "name": "H100", **values})


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        (outcome(passed=True, seconds=0.5), Status.PASSED, "Test PASSED on H100"),
        (outcome(code=46, code_name="X", compute_mode=3), Status.SKIPPED, "exclusively"),
        (outcome(code=2, code_name="X"), Status.SKIPPED, "memory"),
        (outcome(code=46, code_name="X", compute_mode=2), Status.FAILED, "Prohibited"),
        (outcome(code=46, code_name="X"), Status.FAILED, "refuses"),
        (outcome(code=802, code_name="X"), Status.FAILED, "fabric"),
        (outcome(code=803, code_name="X"), Status.FAILED, "different versions"),
        (outcome(code=12345, code_name="X", step="cuInit"), Status.FAILED, "cuInit answered X (12345)"),
        (outcome(hung=True, step="cuCtxCreate_v2"), Status.FAILED, "cuCtxCreate_v2 did not come back within 5 s"),
        (outcome(hung=True, held=True, step="cuInit"), Status.FAILED, "does not even let go"),
        (outcome(signal="SIGSEGV", step="cuInit"), Status.FAILED, "SIGSEGV"),
        (outcome(step="compare", text="element 7 is 0.0"), Status.FAILED, "computes wrong: element 7"),
        (outcome(step="load", text="no such file"), Status.FAILED, "libcuda.so.1 can't be loaded"),
        (outcome(), Status.FAILED, "CUDA fails"),
    ],
)
def test_what_a_run_means(found, status, word) -> None:
    result = cuda.device(cuda.CudaTarget(uuid="u", gpu="u", name="GPU 0"), found)
    said = "; ".join(result.evidence) if result.trouble is None else result.trouble.what
    assert (result.status, word in said) == (status, True), said


def test_cuda_runs_on_slices_instead_of_their_gpu_and_not_on_what_is_lost() -> None:
    found = lost(inventory(3, mig=2), index=2)
    assert [one.name[:7] for one in cuda.targets(found)] == ["MIG 0:0", "MIG 0:1", "GPU 1 ("]


def test_nothing_to_run_on_is_not_ready() -> None:
    found = lost(inventory(1), index=0)
    assert not cuda.judge(found, {}).ready


def test_a_node_without_resources_waits_and_one_without_allocatable_fails() -> None:
    waits = plugin.judge(NodeResources(capacity={"cpu": 4}), usable=2)
    fails = plugin.judge(NodeResources(capacity={"nvidia.com/gpu": 2}, allocatable={"nvidia.com/gpu": 0}), usable=2)
    passes = plugin.judge(NodeResources(capacity={"nvidia.com/gpu": 2}, allocatable={"nvidia.com/gpu": 1}), usable=2)
    early = plugin.judge(NodeResources(capacity={"nvidia.com/gpu": 2}), usable=2, empty_for=plugin.EMPTY_SECONDS - 1)
    assert (early.status, early.trouble) == (Status.WAITING, fails.trouble)
    assert [one.status for one in (waits, fails, passes)] == [Status.WAITING, Status.FAILED, Status.PASSED]
    assert passes.evidence == ("nvidia.com/gpu: 1 of 2",)
