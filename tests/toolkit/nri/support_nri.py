"""A small node: two whole GPUs, one GPU cut in two MIG devices, management, storage; and pods that ask."""

from __future__ import annotations

from collections.abc import Collection

from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, CdiMount, ContainerEdits, Spec, build_spec
from kgpu.kubelet.nri.model import NriContainer, NriMount, NriPod
from kgpu.kubelet.pod_resources import Holding
from kgpu.toolkit.nri.config import NriPolicy
from kgpu.toolkit.nri.devices import DeviceIndex, index_of
from kgpu.toolkit.nri.model import Facts

LIB = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-encode.so.1", "libGLX_nvidia.so.0")
KIND_OF = {"libcuda.so.1": "compute", "libnvidia-ml.so.1": "utility", "libnvidia-encode.so.1": "video",
           "libGLX_nvidia.so.0": "graphics"}  # fmt: skip
MOUNTS = tuple(CdiMount(host_path=f"/drv{LIB}/{name}", container_path=f"{LIB}/{name}") for name in LIBRARIES)
COMMON = ContainerEdits(
    env=("NVIDIA_VISIBLE_DEVICES=void",),
    device_nodes=(CdiDeviceNode(path="/dev/nvidiactl"), CdiDeviceNode(path="/dev/nvidia-uvm")),
    mounts=MOUNTS,
)
POLICY = NriPolicy(
    namespaces=frozenset({"gpu-operator", "ml"}),
    accounts=frozenset({("team", "trainer")}),
    management=frozenset({"gpu-operator"}),
)


def wanted(path: str, asked: Collection[str]) -> bool:
    """Whether the file is of one of the capabilities; files that nobody knows always are."""
    kind = KIND_OF.get(path.rsplit("/", 1)[1])
    return kind is None or kind in asked


def nodes(*paths: str) -> tuple[CdiDeviceNode, ...]:
    return tuple(CdiDeviceNode(path=path) for path in paths)


def gpu(number: int) -> CdiDevice:
    return CdiDevice(names=(str(number), f"GPU-{number}"), nodes=nodes(f"/dev/nvidia{number}"))


def mig(index: str, uuid: str, gi: int, ci: int) -> CdiDevice:
    caps = "/dev/nvidia-caps/nvidia-cap"
    return CdiDevice(names=(index, uuid), nodes=nodes("/dev/nvidia2", f"{caps}{gi}", f"{caps}{ci}"))


def gpu_spec() -> Spec:
    return build_spec(
        kind="nvidia.com/gpu",
        devices=[gpu(0), gpu(1), mig("2:0", "MIG-a", 12, 13), mig("2:1", "MIG-b", 21, 22)],
        common=COMMON,
    )


def management_spec() -> Spec:
    every = CdiDevice(names=("all",), nodes=nodes(*(f"/dev/nvidia{number}" for number in range(3))))
    return build_spec(kind="management.nvidia.com/gpu", devices=[every], common=COMMON, all_device=False)


def gds_spec() -> Spec:
    return build_spec(
        kind="nvidia.com/gds", devices=[CdiDevice(names=("all",), nodes=nodes("/dev/nvidia-fs0"))], all_device=False
    )


def index(*more: Spec) -> DeviceIndex:
    return index_of([(1, spec) for spec in (gpu_spec(), management_spec(), gds_spec(), *more)])


def pod(namespace: str = "user", name: str = "p", **annotations: str) -> NriPod:
    return NriPod(name=name, namespace=namespace, uid=f"uid-{name}", annotations=annotations)


def annotated(value: str, namespace: str = "user", *, scope: str = "") -> NriPod:
    return NriPod(name="p", namespace=namespace, uid="uid-p", annotations={f"nvidia.cdi.k8s.io{scope}": value})


def container(*env: str, devices: tuple[str, ...] = (), mounts: tuple[NriMount, ...] = ()) -> NriContainer:
    return NriContainer(name="main", env=env, devices=devices, mounts=mounts)


def served() -> NriContainer:
    """A container that the kubelet gave GPU 0 through CDI."""
    return given_by_kubelet()


def given_by_kubelet(*env: str) -> NriContainer:
    return NriContainer(
        name="main",
        env=("NVIDIA_VISIBLE_DEVICES=void", *env),
        devices=("/dev/nvidia0", "/dev/nvidiactl"),
        mounts=tuple(NriMount(destination=mount.container_path, source=mount.host_path) for mount in MOUNTS),
    )


def holding(*devices: str, pod: str = "other", namespace: str = "user", resource: str = "nvidia.com/gpu") -> Holding:
    return Holding(namespace=namespace, pod=pod, container="main", resource=resource, devices=devices)


def facts(*holdings: Holding, account: str = "", **more) -> Facts:
    return Facts(index=index(), account=account, holdings=holdings, **more)
