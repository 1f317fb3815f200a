"""Rows DRV that a program or a driver's container says in one sentence: CUDA's errors, requirements, licences."""

from __future__ import annotations

from typing import Final

from kgpu.doctor import matching, remedies
from kgpu.doctor.matching import DRIVER
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Place
from kgpu.doctor.signs import KERNEL, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_BELOW: Final = ("DRV-02", "DRV-03", "DPL-*", "SCH-02", "RUN-01", "OPR-15")


def compute_label(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    """What the node's GPU can do, by its labels."""
    node = snapshot.nodes.get(hit.node)
    keys = (names.LABEL_GPU_PRODUCT, names.LABEL_GPU_COMPUTE_MAJOR, names.LABEL_GPU_COMPUTE_MINOR)
    return tuple(node.cite(f"metadata.labels[{key}]") for key in keys if key in node.labels) if node else ()


def driver_label(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    """Which driver and CUDA the node has, by its labels."""
    node = snapshot.nodes.get(hit.node)
    keys = (names.LABEL_CUDA_DRIVER_VERSION_FULL, names.LABEL_CUDA_RUNTIME_VERSION_FULL)
    return tuple(node.cite(f"metadata.labels[{key}]") for key in keys if key in node.labels) if node else ()


def compat_path(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    """Where the container looks for libraries first."""
    del snapshot
    pod = hit.pod
    rows = (
        [container for container in pod.containers if "compat" in container.env.get("LD_LIBRARY_PATH", "")]
        if pod
        else []
    )
    return tuple(matching.cite_env(pod, container, "LD_LIBRARY_PATH") for container in rows if pod)


RULES: Final = rules_of(
    Sign(
        id="DRV-12",
        title="The image requires a newer driver",
        place=Place.DRIVER,
        pattern=r"requirement error: unsatisfied condition: (?P<condition>[^,\n]+)",
        words="unsatisfied condition",
        cause="{who}: the image requires {condition}, which the driver of the node does not serve",
        remedy=(
            remedies.CUDA_OF_NODE,
            (
                "use an image with an older CUDA, upgrade the driver, or select nodes by "
                "nvidia.com/cuda.runtime-version.major"
            ),
        ),
        explain=(
            "Images state what they need in NVIDIA_REQUIRE_CUDA. NVIDIA_DISABLE_REQUIRE=1 skips the check, "
            "not the need."
        ),
        confidence=CERTAIN,
        proof=driver_label,
    ),
    Sign(
        id="DRV-13",
        title="The wrong libcuda is found first",
        place=Place.DRIVER,
        pattern=r"unsupported display driver / cuda driver combination",
        words="unsupported display driver",
        where=(LOG, STATUS),
        cause="{who}: CUDA error 803: the container finds another libcuda.so before that of the node's driver",
        remedy=(
            remedies.EXEC + "sh -c 'ldconfig -p | grep libcuda; echo $LD_LIBRARY_PATH'",
            "take /usr/local/cuda/compat out of LD_LIBRARY_PATH, or remove the package cuda-compat from the image",
        ),
        explain=(
            "Images with cuda-compat bring a libcuda.so of their own; "
            "together with a newer kernel module it does not work."
        ),
        proof=compat_path,
        rests_on=("NVIDIA/nvidia-docker#1256", "NVIDIA/nvidia-container-toolkit#234"),
    ),
    Sign(
        id="DRV-14",
        title="Forward compatibility on a GPU that has none",
        place=Place.DRIVER,
        pattern=r"forward compatibility was attempted on non supported HW",
        words="forward compatibility was attempted",
        where=(LOG, STATUS),
        cause="{who}: CUDA error 804: the image uses cuda-compat, which works on data-centre GPUs alone",
        remedy=(
            "remove cuda-compat from the image, or take /usr/local/cuda/compat out of LD_LIBRARY_PATH",
            "and upgrade the driver of node {node}",
        ),
        explain="Forward compatibility (a newer libcuda than the driver's) is not for GeForce and most RTX cards.",
        confidence=CERTAIN,
        proof=compute_label,
        rests_on=("NVIDIA/nvidia-docker#1515",),
    ),
    Sign(
        id="DRV-15",
        title="The program was not built for this GPU",
        place=Place.DRIVER,
        pattern=r"no kernel image is available for execution on the device",
        words="no kernel image is available",
        where=(LOG, STATUS),
        cause="{who}: the program has no code for the compute capability of the node's GPU",
        remedy=(
            (
                "kubectl get node {node} -L nvidia.com/gpu.product -L nvidia.com/gpu.compute.major -L "
                "nvidia.com/gpu.compute.minor"
            ),
            (
                "use an image built for that capability (TORCH_CUDA_ARCH_LIST, -gencode), "
                "or select nodes by nvidia.com/gpu.compute.major"
            ),
        ),
        explain="CUDA programs hold code for the capabilities that they were compiled for.",
        confidence=CERTAIN,
        proof=compute_label,
    ),
    Sign(
        id="DRV-17",
        title="The fabric manager is of another version",
        place=Place.DRIVER,
        pattern=(
            r"fabric manager NVIDIA GPU driver interface version (?P<fm>\S+) don.?t match with driver version "
            r"(?P<driver>(?P<branch>\d+)[\d.]*\d)"
        ),
        words="driver interface version",
        always=True,
        where=(LOG, STATUS, KERNEL),
        cause="{who}: the fabric manager is of version {fm} and the driver of {driver}; they must be the same",
        remedy=(
            "apt install nvidia-fabricmanager-{branch}={driver}-1",
            remedies.restart_service("nvidia-fabricmanager"),
        ),
        explain="The fabric manager refuses a driver of any other version than its own.",
        confidence=CERTAIN,
        explains=("DRV-16", "DRV-02"),
        rests_on=("NVIDIA/gpu-driver-container#735",),
    ),
    Sign(
        id="DRV-20",
        title="nvidia-uvm can't be loaded again",
        place=Place.KERNEL,
        pattern=r"could not insert '?nvidia[_-]uvm'?|nvidia_uvm: (?:Unknown symbol|disagrees about version)",
        words="uvm",
        where=(LOG, STATUS, KERNEL),
        cause="{who}: the module nvidia-uvm can't be loaded after the driver was changed",
        remedy=(
            "on the node:",
            "dmesg | grep -i uvm | tail",
            *remedies.REBOOT,
        ),
        explain="After a driver was removed or upgraded under running programs uvm may stay wedged until a reboot.",
        explains=(*_BELOW, "DRV-19"),
        rests_on=("NVIDIA/aicr#1553",),
    ),
    Sign(
        id="DRV-22",
        title="The GPU's infoROM is corrupted",
        place=Place.HARDWARE,
        pattern=r"infoROM is corrupted at gpu (?P<gpu>[\w:.]+)",
        words="infoROM is corrupted",
        always=True,
        where=(LOG, STATUS, KERNEL),
        cause="{who}: the infoROM of GPU {gpu} is corrupted; nvidia-smi ends with 14, and validation fails",
        remedy=(
            "on the node:",
            "nvidia-smi -q -i {gpu} | grep -A4 -i inforom",
            "update its firmware with the vendor's tool, or have the card replaced",
        ),
        explain="The board's own store of its settings does not read back as it should.",
        confidence=CERTAIN,
        explains=_BELOW,
        rests_on=(
            "NVIDIA GPU Operator documentation: troubleshooting, release notes",
            "NVIDIA nvidia-smi documentation",
        ),
    ),
    Sign(
        id="DRV-25",
        title="The node is not registered with Red Hat",
        place=Place.KERNEL,
        pattern=(
            r"This system is not registered|not entitled|No valid entitlement"
            r"|Unable to find any (?:valid )?subscription"
        ),
        words="",
        where=(LOG,),
        parts=(DRIVER,),
        cause="{who} gets no kernel packages: the node has no Red Hat subscription that the container can use",
        remedy=(
            "on node {node}:",
            "subscription-manager register",
            "or mount the entitlement: driver.repoConfig",
            "or use precompiled drivers: driver.usePrecompiled=true; on OpenShift the driver toolkit",
        ),
        explain="On RHEL the build takes kernel-devel from repositories that ask for an entitlement.",
        confidence=CERTAIN,
        explains=(*_BELOW, "DRV-24", "KRN-01"),
        rests_on=(
            "NVIDIA GPU Operator documentation: troubleshooting, release notes",
            "NVIDIA/gpu-operator v26.7.0, source",
        ),
    ),
)
