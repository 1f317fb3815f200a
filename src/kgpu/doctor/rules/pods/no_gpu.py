"""Programs that say that they see no GPU, also in pods that run and are Ready, and why, by what the objects say.

A container has asked for none (QTA-10), or it has asked and none was put into it (RUN-24). Rows of ``_CAUSES`` tell why
that was; the last one knows no more than that the runtime has not done it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, pod_claims, remedies, signs
from kgpu.doctor.kinds import Container, Log, Pod
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.runtime.files import toolkits
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_SEES: Final = names.ENV_VISIBLE_DEVICES
_CAPABILITIES: Final = names.ENV_DRIVER_CAPABILITIES
_CUDA_SEES: Final = "CUDA_VISIBLE_DEVICES"
_TOOL: Final = (
    r"nvidia-smi: (?:command )?not found|exec: \\?\"?nvidia-smi\\?\"?: executable file not found"
    r"|No such file or directory: '(?:/usr/bin/)?nvidia-smi'"
)
_STRONG: Final = (
    rf"{_TOOL}|lib(?:cuda|nvidia-ml)\.so(?:\.1)?: cannot open shared object|NVML Shared Library Not Found"
    r"|Found no NVIDIA driver|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|No CUDA GPUs are available"
)
_SOFT: Final = (
    r"is_available\(\)(?: is|\W{0,5}) ?False|(?:CUDA|GPU) (?:is )?available\W{1,3}(?:False|No\b)|CUDA is not available"
    r"|Could not find cuda drivers|not compiled with CUDA enabled"
)
"""What programs also say that do well without a GPU."""
_SAID: Final = re.compile(rf"(?P<strong>{_STRONG})|{_SOFT}", re.IGNORECASE)
_OF_TOOL: Final = re.compile(_TOOL, re.IGNORECASE)
_OTHER: Final = re.compile(
    r"driver on your system is too old|version mismatch|forward compatibility was attempted"
    r"|insufficient for CUDA runtime"
    r"|unsupported display driver|couldn't communicate with the NVIDIA driver|Unknown Error|system not yet initialized",
    re.IGNORECASE,
)
"""What says more exactly why there is none: other rules tell of it."""
_WITHOUT_CUDA: Final = re.compile(r"not compiled with CUDA enabled|\b\d+\.\d+\.\d+\+cpu\b")
_NONE: Final = frozenset({"void", "none"})
_NO_INDEX: Final = frozenset({"-1", "none", "NoDevFiles"})
_PUT: Final = Remedy("every container of a pod gets only the devices that it asks for itself")


@dataclass(frozen=True, slots=True)
class _Case:
    """A container that says that it sees no GPU."""

    snapshot: Snapshot
    pod: Pod
    container: Container
    seen: Evidence
    strong: bool

    @property
    def logged(self) -> str:
        """All lines that it has logged."""
        return "\n".join(
            line
            for log in self.snapshot.logs_of(self.pod)
            if log.container in ("", self.container.name)
            for line in log.lines
        )


def _cases(snapshot: Snapshot) -> list[_Case]:
    return list(_complaining(snapshot))


def _complaining(snapshot: Snapshot) -> Iterator[_Case]:
    for pod in snapshot.pods.values():
        if not pod.containers or (pod.ready and pod.key not in snapshot.logs):
            continue
        if pod.phase == "Succeeded" or matching.superseded(snapshot, pod) or matching.parts_of_pod(snapshot, pod):
            continue
        for container in pod.containers:
            complaint = _complaint_of(snapshot, pod, container)
            if complaint is not None:
                yield _Case(snapshot, pod, container, *complaint)


def _complaint_of(snapshot: Snapshot, pod: Pod, container: Container) -> tuple[Evidence, bool] | None:
    for log in snapshot.logs_of(pod):
        if log.container in ("", container.name) and (line := _line(log)) is not None:
            return log.cite(line[0]), line[1]
    for field, message in container.messages:
        if hit := _SAID.search(message):
            return container.cite_status(field), bool(hit["strong"])
    return None


def _line(log: Log) -> tuple[int, bool] | None:
    """The last line that says it, and whether only a program that needs a GPU would say so."""
    soft = None
    for at in range(len(log.lines) - 1, -1, -1):
        hit = _SAID.search(log.lines[at])
        if hit and hit["strong"]:
            return at, True
        soft = at if hit and soft is None else soft
    return None if soft is None else (soft, False)


def _asks(container: Container) -> bool:
    return any(matching.is_accelerator(str(name)) for name in (*container.limits, *container.requests))


@rule(
    "QTA-10",
    "The container asks for no GPU",
    Place.CLUSTER,
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
)
def without_gpu(snapshot: Snapshot) -> Iterator[Finding]:
    """Devices are given to containers, not to pods: one without a limit gets no driver files and no device."""
    for case in snapshot.once(_cases):
        pod, container = case.pod, case.container
        if not container.image:
            if case.strong and not _OTHER.search(case.logged):
                yield _unknown(case)
            continue
        claims = pod_claims.accelerator_claims(snapshot, pod)
        if _asks(container) or pod_claims.held_by(container) & set(claims) or container.env.get(_SEES) in _NONE:
            continue
        others = [each for each in pod.containers if _asks(each)]
        node = snapshot.nodes.get(pod.node)
        elsewhere = not others and node is not None and not matching.vendors_of(node, snapshot)
        if not case.strong and not others and not claims and (elsewhere or node is None):
            continue  # a program that finds no GPU where there is none, and does without
        where = f"; the GPU is given to container {others[0].name} alone" if others else ""
        if claims:
            where = f"; the pod's claim {claims[0]} is for the containers that name it, and this one does not"
        put = (
            f"{{claims: [{{name: {claims[0]}}}]}} into resources"
            if claims
            else "nvidia.com/gpu: 1 into resources.limits"
        )
        by_env = f"; {_SEES} alone gives one only where the runtime nvidia runs it" if _SEES in container.env else ""
        yield Finding(
            subject=pod.subject,
            cause=f"container {container.name} of {pod} sees no GPU, because it asks for none{where}{by_env}",
            evidence=(
                case.seen,
                container.cite("resources"),
                *((matching.cite_env(pod, container, _SEES),) if by_env else ()),
            ),
            remedy=(Remedy("put {} of container {}", put, container.name), _PUT),
            confidence=CERTAIN if others else LIKELY,
            level=Level.NOTE if elsewhere and pod.ready else Level.PROBLEM,
            nodes=(pod.node,) if pod.node else (),
            pods=(pod.path,),
        )


def _unknown(case: _Case) -> Finding:
    pod = case.pod
    return Finding(
        subject=pod.subject,
        cause=f"{pod} sees no GPU: it has asked for none, or none was put into it; what it asks for is not known here",
        evidence=(case.seen,),
        remedy=(
            Remedy(
                "kubectl -n {} get pod {} -o jsonpath='{{.spec.containers[*].resources}}' "
                "# is nvidia.com/gpu in limits?",
                pod.namespace,
                pod.name,
            ),
            Remedy(
                "if not, put it there; if it is, give the doctor the pod, its node and the pods of the GPU stack on it"
            ),
        ),
        confidence=LIKELY,
        pods=(pod.path,),
    )


@dataclass(frozen=True, slots=True)
class _Why:
    cause: str
    remedy: tuple[Remedy, ...]
    evidence: tuple[Evidence, ...] = ()
    confidence: float = LIKELY


def _without_cuda(case: _Case) -> _Why | None:
    if not _WITHOUT_CUDA.search(case.logged):
        return None
    return _Why(
        "the program in its image was built without CUDA, whatever the pod has",
        (Remedy("use an image that is built with CUDA instead of {}", case.container.image),),
        (case.container.cite("image"),),
        CERTAIN,
    )


def _hidden(case: _Case) -> _Why | None:
    container, env = case.container, case.container.env
    name = _SEES if env.get(_SEES) in _NONE else _CUDA_SEES if env.get(_CUDA_SEES) in _NO_INDEX else ""
    if not name:
        return None
    return _Why(
        f"its variable {name}={env[name]} takes it away",
        (
            Remedy(
                "take {} out of the env of container {}: the device plugin says which GPU it has", name, container.name
            ),
        ),
        (matching.cite_env(case.pod, container, name),),
        CERTAIN,
    )


def _capability(case: _Case) -> _Why | None:
    """``utility`` brings nvidia-smi and NVML, ``compute`` CUDA."""
    capabilities = case.container.env.get(_CAPABILITIES)
    wanted = "utility" if _OF_TOOL.search(case.seen.value) or "nvidia-ml" in case.seen.value else "compute"
    if not capabilities or "all" in capabilities or wanted in capabilities:
        return None
    return _Why(
        f"{_CAPABILITIES}={capabilities} leaves out {wanted}",
        (
            Remedy(
                "set {}=compute,utility in the env of container {}, or take it out", _CAPABILITIES, case.container.name
            ),
        ),
        (matching.cite_env(case.pod, case.container, _CAPABILITIES),),
        CERTAIN,
    )


def _class(case: _Case) -> _Why | None:
    """Where the stack's pods on the node run under a RuntimeClass, no toolkit works there, and this pod has none."""
    pod, snapshot = case.pod, case.snapshot
    if pod.runtime_class or snapshot.once(toolkits).get(pod.node):
        return None
    plugins = matching.pods_of_part(snapshot, matching.PLUGIN, vendor=matching.NVIDIA, node=pod.node)
    under = next((plugin for plugin in plugins if plugin.runtime_class), None)
    if under is None:
        return None
    wanted = under.runtime_class
    return _Why(
        f"it runs under the node's default runtime, and the device plugin there under RuntimeClass {wanted}",
        (
            Remedy("set spec.runtimeClassName: {} in the pod's template", wanted),
            Remedy(
                "or make {} the default runtime of node {}, or let the plugin give devices by CDI", wanted, pod.node
            ),
        ),
        (Evidence(str(pod), "spec.runtimeClassName", "<none>", pod.source), under.cite("spec.runtimeClassName")),
    )


def _toolkit(case: _Case) -> _Why | None:
    pods = case.snapshot.once(toolkits).get(case.pod.node, [])
    bad = next((toolkit for toolkit in pods if not toolkit.ready), None)
    if bad is None:
        return None
    return _Why(
        f"{bad}, which sets up the runtime of its node, is not ready",
        (
            remedies.describe(bad.namespace, "pod", bad.name),
            Remedy("when it is ready, end the pod: made anew, it gets its GPU"),
            remedies.delete_pod(case.pod.namespace, case.pod.name),
        ),
        (bad.cite("status.phase"),),
    )


def _runtime(case: _Case) -> _Why:
    node = case.pod.node or "NODE"
    known = case.snapshot.nodes.get(case.pod.node)
    return _Why(
        "its node's runtime has put none into it: neither the runtime nvidia nor CDI is in force for it",
        (
            Remedy("on node {}:", node),
            Remedy("kgpu runtime status"),
            Remedy("kgpu cdi list"),
            Remedy("nvidia-smi"),
            Remedy(
                "bring the toolkit there (GPU operator: toolkit.enabled=true), or set runtimeClassName: nvidia where "
                "a RuntimeClass of that name is"
            ),
            Remedy("then end the pod: made anew, it gets its GPU"),
            remedies.delete_pod(case.pod.namespace, case.pod.name),
        ),
        (known.cite("status.nodeInfo.containerRuntimeVersion"),) if known else (),
    )


_CAUSES: Final[tuple[Callable[[_Case], _Why | None], ...]] = (
    _without_cuda, _hidden, _capability, _class, _toolkit, _runtime,
)  # fmt: skip
"""The first that knows why counts."""


@rule(
    "RUN-24",
    "A GPU was asked for, and none is in the container",
    Place.RUNTIME,
    explains=("QTA-10",),
    rests_on=("NVIDIA/nvidia-container-toolkit v1.20.0, source",),
)
def not_injected(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia-smi, libcuda and the devices come from the node when a GPU is injected; images do not bring them. The
    runtime does it as nvidia or by CDI, unless the container's own variables forbid it.
    """
    yield from signs.findings(snapshot, _NO_TOOL, _NO_TOOL_PATTERN)
    for case in snapshot.once(_cases):
        pod, container = case.pod, case.container
        claimed = bool(pod_claims.held_by(container) & set(pod_claims.accelerator_claims(snapshot, pod)))
        nvidia = any(
            matching.vendor_of(str(name)) == matching.NVIDIA for name in (*container.limits, *container.requests)
        )
        if not container.image or not (nvidia or claimed) or _OTHER.search(case.logged):
            continue
        why = next(reason for cause in _CAUSES if (reason := cause(case)) is not None)
        yield Finding(
            subject=pod.subject,
            cause=(
                f"container {container.name} of {pod}{f' on node {pod.node}' if pod.node else ''} has asked for a GPU "
                f"and sees none: {why.cause}"
            ),
            evidence=(case.seen, container.cite("resources"), *why.evidence),
            remedy=why.remedy,
            confidence=why.confidence,
            nodes=(pod.node,) if pod.node else (),
            pods=(pod.path,),
        )


def _nobody_asks(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The pod's resources where it asks for no accelerator, else None: rules above or QTA-10 report that."""
    del snapshot
    if hit.pod is None:
        return ()
    if matching.uses_accelerators(hit.pod):
        return None
    return tuple(container.cite("resources") for container in hit.pod.containers if not container.init)[:1]


_NO_TOOL: Final = Sign(
    id="RUN-24",
    title="nvidia-smi is not in the container",
    place=Place.RUNTIME,
    pattern=r"exec: \\?\"nvidia-smi\\?\": executable file not found",
    words="nvidia-smi",
    where=(EVENT, STATUS, LOG),
    cause=(
        "{who} has no nvidia-smi inside: no GPU was injected (no limit nvidia.com/gpu), "
        "or not with the capability utility"
    ),
    remedy=(
        "set resources.limits nvidia.com/gpu: 1 on the container",
        "and NVIDIA_DRIVER_CAPABILITIES=compute,utility where the image sets it to something else",
    ),
    explain="",
    confidence=CERTAIN,
    proof=_nobody_asks,
    rests_on=("NVIDIA/nvidia-container-toolkit v1.20.0, source",),
)
_NO_TOOL_PATTERN: Final = re.compile(_NO_TOOL.pattern)
