"""Which control daemons a node needs, with which limits. Pure.

One daemon serves one resource, as with the replaced program: its pipe folder is the resource's. Its clients have equal
parts of each GPU, ``memory / replicas`` MiB and ``100 / replicas`` percent of the threads. A resource of which one GPU
can't be shared gets no daemon: its shares would be offered on that GPU too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats.plugin_config import most_mps_clients
from kgpu.mps.model import DaemonSpec, MpsOrder, MpsPlan, MpsShare, SharedGpu, ShareRefusal

OLDEST: Final = (3, 5)
"""By NVIDIA's documentation of MPS."""
SOCKET_PATH: Final = 107
"""Bytes of a Unix socket's path; a daemon whose path is longer says only that it can't be found."""
LONGEST_SOCKET: Final = "control_privileged"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of the table: when a GPU can't be shared by MPS, and what is told then."""

    applies: Callable[[SharedGpu], bool]
    why: Callable[[SharedGpu], str]
    expected: str
    remedy: str


def most_clients(gpu: SharedGpu) -> int:
    """How many clients a server takes on this GPU."""
    return most_mps_clients(gpu.capability)


REFUSALS: Final = (
    Refusal(
        lambda gpu: gpu.mig,
        lambda gpu: f"the MIG mode of GPU {gpu.index} is on",
        "MPS on whole GPUs only: on one with slices no program can use the whole",
        "turn its MIG mode off, or share MIG devices by sharing.timeSlicing",
    ),
    Refusal(
        lambda gpu: gpu.capability is not None and gpu.capability < OLDEST,
        lambda gpu: f"GPU {gpu.index} has compute capability {'.'.join(map(str, gpu.capability or ()))}",
        "a GPU of compute capability 3.5 or later",
        "share it by sharing.timeSlicing",
    ),
    Refusal(
        lambda gpu: gpu.replicas > most_clients(gpu),
        lambda gpu: f"GPU {gpu.index} has {gpu.replicas} shares, and its MPS server takes {most_clients(gpu)} clients",
        "at most 48 shares of a GPU, 16 before Volta",
        "lower sharing.mps.resources[].replicas",
    ),
    Refusal(
        lambda gpu: gpu.memory_mib is not None and gpu.memory_mib < gpu.replicas,
        lambda gpu: f"GPU {gpu.index} has {gpu.memory_mib} MiB for {gpu.replicas} shares",
        "1 MiB of memory for each share",
        "look at the GPU: the driver reports nearly no memory",
    ),
)  # fmt: skip
"""Rows in the order in which they are tried; the first that applies is told."""


def plan(order: MpsOrder) -> MpsPlan:
    """The daemons for what is asked. Equal orders give equal plans."""
    daemons: list[DaemonSpec] = []
    refused: list[ShareRefusal] = []
    taken: dict[str, str] = {}
    for share in sorted(order.shares, key=lambda share: share.resource):
        problem = _problem(order.root, share, taken)
        if problem is not None:
            refused.append(ShareRefusal(share.resource, problem))
            continue
        taken |= dict.fromkeys((gpu.uuid for gpu in share.gpus), share.resource)
        daemons.append(_daemon(order.root, share))
    return MpsPlan(root=order.root, daemons=tuple(daemons), refused=tuple(refused))


def socket_problem(lead: str, spec: DaemonSpec, remedy: str) -> ConfigError | None:
    """Why a daemon could not listen in its folder, None if it can. ``lead`` begins the error."""
    path = f"{spec.pipe}/{LONGEST_SOCKET}"
    if len(path.encode()) <= SOCKET_PATH:
        return None
    return ConfigError(f"{lead}the path of its socket is too long: {path}", f"at most {SOCKET_PATH} bytes", remedy)


def _problem(root: str, share: MpsShare, taken: dict[str, str]) -> ConfigError | None:
    lead = f"{share.resource} gets no MPS control daemon: "
    spec = DaemonSpec(root=root, resource=share.resource, gpus=())
    problem = socket_problem(lead, spec, "choose a shorter flags.mpsRoot (MPS_ROOT) or resource name")
    if problem is not None:
        return problem
    for gpu in share.gpus:
        if gpu.uuid in taken:
            return ConfigError(
                f"{lead}GPU {gpu.index} is shared as {taken[gpu.uuid]} too",
                "a GPU under one name: one MPS server can have it for itself",
                "share it once in sharing.mps.resources",
            )
        row = next((row for row in REFUSALS if row.applies(gpu)), None)
        if row is not None:
            return ConfigError(lead + row.why(gpu), row.expected, row.remedy)
    return None


def _daemon(root: str, share: MpsShare) -> DaemonSpec:
    gpus = sorted(share.gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    return DaemonSpec(
        root=root,
        resource=share.resource,
        gpus=tuple(gpu.uuid for gpu in gpus),
        replicas=tuple(gpu.replicas for gpu in gpus),
        limits_mib=tuple((gpu.memory_mib or 0) // gpu.replicas for gpu in gpus),
        # MPS has one default for all GPUs of a daemon: the smallest part, so that all clients of a GPU fit on it.
        percentage=100 // max(gpu.replicas for gpu in gpus),
    )


def stays(running: DaemonSpec, wanted: DaemonSpec | None, present: Collection[str]) -> bool:
    """Whether a daemon goes on as it is although the hardware was read anew, with the same configuration.

    A GPU that is lost takes the clients of the others nowhere: the daemon ends only for a GPU that it should serve and
    does not, or that is there (``present``, by UUID) and no longer its own.
    """
    gpus = set(wanted.gpus if wanted is not None else ())
    return gpus <= set(running.gpus) and not (set(running.gpus) - gpus) & set(present)
