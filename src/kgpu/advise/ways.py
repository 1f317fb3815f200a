"""The ways to share a GPU as a table, and what to choose for which need. Data alone; the same table is in the docs.

``sources`` are rows of the checklist of facts that kgpu is held to: A is the bare metal module, B the provisioning
module, C the scheduling lesson, D the operator guide; T-nn is the verdict where these contradict each other. Others are
named: the device plugin's source and issues, NVIDIA's DRA driver, Kubernetes' version matrix of DRA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.advise.model import SharingWay
from kgpu.formats import names

_PLUGIN: Final = "NVIDIA/k8s-device-plugin v0.20.0, source"
_DRA: Final = "NVIDIA/k8s-dra-driver-gpu"
_AS_CLAIMED: Final = "as what is claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingFact:
    """One row of the table: a property, and what each way has of it."""

    key: str
    title: str
    whole: str
    time_slicing: str
    mps: str
    mig: str
    dra: str
    sources: tuple[str, ...]

    def of(self, way: SharingWay) -> str:
        """The cell of that way."""
        text: str = getattr(self, way.value.replace("-", "_"))
        return text


FACTS: Final = (
    SharingFact(
        key="choose",
        title="choose it when",
        whole="the work fills a GPU, or needs several",
        time_slicing="development, tests, notebooks, bursts, of people who trust each other",
        mps="several steady processes at once, such as replicas of inference, of people who trust each other",
        mig="tenants must not disturb each other; inference with a guaranteed latency",
        dra="pods choose a device by what it has, or several pods share one claim",
        sources=("C17", "C24", "C47", "A02", "A93"),
    ),
    SharingFact(
        key="memory-isolation",
        title="memory isolation",
        whole="yes: nobody else is there",
        time_slicing="none",
        mps="partial: a limit, no wall",
        mig="yes, in hardware",
        dra="between claims as what is claimed; between pods of one claim as time-slicing or MPS",
        sources=("D40", "C17", "C18", "C21", "A51", f"{_DRA}, GpuConfig"),
    ),
    SharingFact(
        key="fault-containment",
        title="faults stay with their cause",
        whole="yes: nobody else is there",
        time_slicing="no",
        mps="no: a crash may end the work of all, and reset the GPU",
        mig="yes",
        dra=_AS_CLAIMED,
        sources=("D40", "D41", "C22"),
    ),
    SharingFact(
        key="latency",
        title="what neighbours cost",
        whole="nothing: there are none",
        time_slicing="jitter; turns are not fair",
        mps="little",
        mig="nothing: no effect on latency",
        dra=_AS_CLAIMED,
        sources=("C17", "C21"),
    ),
    SharingFact(
        key="concurrent",
        title="kernels at the same time",
        whole="of one container",
        time_slicing="no: in turns",
        mps="yes",
        mig="yes",
        dra=_AS_CLAIMED,
        sources=("D40", "C45", "C47"),
    ),
    SharingFact(
        key="gpus",
        title="which GPUs",
        whole="any",
        time_slicing="any",
        mps="Volta or newer; older ones know neither isolation nor limits",
        mig="those with MIG, from Ampere on: A30, A100, H100, H200, B200 and their kin, RTX PRO 6000",
        dra="any that the DRA driver knows",
        sources=("D40", "C17", "D30", "T-42", "T-43"),
    ),
    SharingFact(
        key="partitions",
        title="containers on a GPU",
        whole="1",
        time_slicing="no limit; more shares give no more compute",
        mps="48 clients; 16 before Volta",
        mig="7; A30 and RTX PRO 6000: 4",
        dra=_AS_CLAIMED,
        sources=("D40", "C18", "T-42"),
    ),
    SharingFact(
        key="sizes",
        title="sizes of the parts",
        whole="the GPU",
        time_slicing="equal",
        mps="any to MPS itself; equal by the device plugin's replicas",
        mig="fixed profiles, such as 1g.10gb",
        dra="GPUs or MIG profiles; the claim chooses",
        sources=("D40", "C19", _PLUGIN, _DRA),
    ),
    SharingFact(
        key="memory-limit",
        title="memory limit",
        whole="the GPU's memory",
        time_slicing="none: who is late gets out-of-memory",
        mps="memory / replicas, for each client process and not for each share",
        mig="the slice's memory",
        dra=_AS_CLAIMED,
        sources=("D41", "A51", "C18", _PLUGIN, "NVIDIA/k8s-device-plugin#720"),
    ),
    SharingFact(
        key="compute-limit",
        title="compute limit",
        whole="the GPU",
        time_slicing="none",
        mps="100 % / replicas of the threads",
        mig="the slice's multiprocessors",
        dra=_AS_CLAIMED,
        sources=("C18", "C21", _PLUGIN),
    ),
    SharingFact(
        key="monitoring",
        title="metrics of each client",
        whole="all of the GPU's",
        time_slicing="memory and busy time of its own processes; the rest is the whole GPU's",
        mps="memory and busy time of its own processes; the rest is the whole GPU's",
        mig="the slice's memory, from Hopper on its engines' activity; no busy time",
        dra="the device's, with the claim's name, where the exporter is told to resolve claims",
        sources=("T-32", "kgpu's metrics exporter"),
    ),
    SharingFact(
        key="resource",
        title="what a pod asks for",
        whole=f"{names.GPU_RESOURCE}: 1 or more",
        time_slicing=f"{names.GPU_RESOURCE}: 1, or {names.GPU_RESOURCE}{names.SHARED_SUFFIX}: 1 with renameByDefault",
        mps=f"{names.GPU_RESOURCE}: 1, or {names.GPU_RESOURCE}{names.SHARED_SUFFIX}: 1 with renameByDefault",
        mig=f"{names.GPU_RESOURCE}: 1 (strategy single), {names.MIG_RESOURCE_PREFIX}1g.10gb: 1 (mixed)",
        dra="a ResourceClaim of class gpu.nvidia.com or mig.nvidia.com",
        sources=("C23", "T-22", _PLUGIN, _DRA),
    ),
    SharingFact(
        key="needs",
        title="what it needs",
        whole="the device plugin",
        time_slicing="sharing.timeSlicing in the device plugin's configuration",
        mps="sharing.mps there, and an MPS control daemon for each shared resource",
        mig="MIG turned on, slices made, a MIG strategy",
        dra="Kubernetes 1.34 (before: feature gates), a DRA driver, CDI; NVIDIA's: GPU driver 565",
        sources=("C22", _PLUGIN, "T-14", f"{_DRA}, requirements"),
    ),
    SharingFact(
        key="together",
        title="goes together with",
        whole="-",
        time_slicing="MIG: 7 slices in 4 shares each are 28; not MPS on the same GPU",
        mps="neither time-slicing nor MIG",
        mig="time-slicing; not MPS",
        dra="the device plugin on other nodes",
        sources=("C22", "C23", "C46", "C48", "Kubernetes KEP-5004"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingNeed:
    """What matters most to somebody, and the ways that answer it, the best first."""

    key: str
    title: str
    ways: tuple[SharingWay, ...]
    sources: tuple[str, ...]


NEEDS: Final = (
    SharingNeed(
        key="isolation",
        title="users must neither see nor disturb each other",
        ways=(SharingWay.MIG, SharingWay.WHOLE),
        sources=("C24", "C17", "D40", "A93"),
    ),
    SharingNeed(
        key="memory-limit",
        title="nobody takes more memory than a share, and users trust each other",
        ways=(SharingWay.MIG, SharingWay.MPS, SharingWay.WHOLE),
        sources=("D40", "D41"),
    ),
    SharingNeed(
        key="throughput",
        title="several steady processes work at the same time, of users who trust each other",
        ways=(SharingWay.MPS, SharingWay.MIG, SharingWay.TIME_SLICING),
        sources=("C17", "C47", "D40"),
    ),
    SharingNeed(
        key="many-small",
        title="development, tests and notebooks: much idle time, of users who trust each other",
        ways=(SharingWay.TIME_SLICING,),
        sources=("C17", "D30"),
    ),
    SharingNeed(
        key="whole-gpu",
        title="the work fills a GPU or needs several",
        ways=(SharingWay.WHOLE,),
        sources=("C24",),
    ),
    SharingNeed(
        key="by-attribute",
        title="pods choose a device by memory, model or profile, or several pods share one",
        ways=(SharingWay.DRA,),
        sources=(_DRA,),
    ),
)
NEED_BY_KEY: Final = {need.key: need for need in NEEDS}
