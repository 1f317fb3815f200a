"""Pods that run and fail, and workloads whose pods are refused: manifests, limits, images, runtimes, collectives."""

from __future__ import annotations

from tests.doctor.lab.breaking import Break, Replaced
from tests.doctor.lab.labs import ELSEWHERE, FIRST
from tests.doctor.lab.things import CUDA, GPU, SHELL, SPACE, deployment, job, make, obj, pod, says

ON_FIRST = {"kubernetes.io/hostname": FIRST}
BROKEN = f"{SPACE}/broken"
NCCL = "broken:71:85 [0] NCCL WARN "


def fails(what: str, first: str, *lines: str, **about: object) -> Break:
    """A GPU pod whose program says that and ends."""
    made = pod(command=says(*lines), **{"restartPolicy": "Never", "nodeSelector": ON_FIRST, **about})  # type: ignore[arg-type]
    return Break(what=what, first=first, names=BROKEN, steps=(make(made),))


BREAKS = (
    Break(
        what="a Deployment in a namespace whose quota is used up", first="QTA-04", names="gpu-quota",
        target=f"deployment {SPACE}/serve",
        steps=(
            make(obj("ResourceQuota", "gpu-quota", SPACE, spec={"hard": {f"requests.{GPU}": "1"}})),
            make(deployment("serve", 2)),
        ),
    ),
    Break(
        what="a quota on limits of GPUs, which nobody counts", first="QTA-05", names="gpu-quota",
        steps=(make(obj("ResourceQuota", "gpu-quota", SPACE, spec={"hard": {f"limits.{GPU}": "1"}})),),
    ),
    Break(
        what="a LimitRange that gives every container a GPU", first="QTA-07", names="everybody",
        steps=(
            make(obj("LimitRange", "everybody", SPACE, spec={"limits": [{
                "type": "Container", "default": {GPU: "1"}, "defaultRequest": {GPU: "1"},
            }]})),
            make(*(pod(f"web-{number}", 0, image=SHELL) for number in range(8))),
        ),
    ),
    Break(
        what="a Job above the LimitRange's maximum", first="QTA-08", names=f"{SPACE}/train", target=f"job {SPACE}/train",
        steps=(
            make(obj("LimitRange", "small", SPACE, spec={"limits": [{"type": "Container", "max": {GPU: "1"}}]})),
            make(job("train", 2)),
        ),
    ),
    Break(
        what="nvidia-smi in a container that asks for no GPU", first="QTA-10", names=BROKEN,
        steps=(
            make(
                obj("Pod", "broken", SPACE, spec={
                    "terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "nodeSelector": ON_FIRST,
                    "containers": [
                        {"name": "train", "image": SHELL, "command": ["nvidia-smi"]},
                        {"name": "side", "image": SHELL, "command": ["sleep", "3600"], "resources": {"limits": {GPU: 1}}},
                    ],
                }),
            ),
        ),
    ),
    Break(
        what="nvidia-smi in a pod without a GPU", first="RUN-24", names=BROKEN,
        steps=(make(pod(gpus=0, command=["nvidia-smi"], image=SHELL, restartPolicy="Never", nodeName=FIRST)),),
    ),
    Break(
        what="a RuntimeClass that nobody made", first="RUN-02", names="nvidia-legacy", target=f"deployment {SPACE}/serve",
        steps=(make(deployment("serve", 1, runtimeClassName="nvidia-legacy")),),
    ),
    Break(
        what="the CDI spec of the node's GPUs is gone", first="RUN-18", names=BROKEN,
        steps=(Replaced(FIRST, "cdi", {}), make(pod(gpus=5))),
    ),
    fails(
        "a base image without the driver's library", "RUN-23",
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object"
        " file: no such file or directory",
    ),
    Break(
        what="a program that ends with an error and is started again", first="POD-00", names="no such model: llama-9",
        target=f"pod {BROKEN}",
        steps=(make(pod(command=says("starting", "ValueError: no such model: llama-9", code=3), nodeSelector=ON_FIRST)),),
    ),
    fails("an image for another processor", "IMG-05", "exec /usr/bin/python3: exec format error"),
    Break(
        what="an image's name in capitals", first="IMG-07", names=BROKEN,
        steps=(make(pod(image="registry.example.com/ML/Train:1.0")),),
    ),
    fails(
        "64 MiB of shared memory for NCCL", "NET-01",
        NCCL + "Error while creating shared memory segment /dev/shm/nccl-A1b2 (size 9637888): No space left on device",
    ),
    fails(
        "64 MiB of shared memory for data loaders", "NET-02",
        "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Bus error. It is possible that dataloader"
        " workers are out of shared memory.",
    ),
    fails("NCCL_SOCKET_IFNAME of the host", "NET-07", NCCL + "Bootstrap : no socket interface found"),
    fails(
        "a rank that waits for one that is gone", "NET-11",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=912, OpType=ALLREDUCE,"
        " Timeout(ms)=600000)",
    ),
    fails("memory that can't be pinned", "NET-05", "Couldn't allocate MR", "ibv_reg_mr failed: Cannot allocate memory"),
    Break(
        what="an RDMA resource that no node has", first="NET-12", names=BROKEN,
        steps=(make(pod(gpus={GPU: 1, "rdma/hca_shared_a": 1})),),
    ),
    Break(
        what="a claim where nothing hands out devices by claims", first="DRA-02", names="no-such-claim",
        target=f"pod {BROKEN}",
        steps=(
            make(
                pod(gpus=0, container={"resources": {"claims": [{"name": "gpu"}]}},
                    resourceClaims=[{"name": "gpu", "resourceClaimName": "no-such-claim"}]),
            ),
        ),
    ),
    Break(
        what="torchrun on two nodes without a meeting point", first="NET-13", names=f"{SPACE}/train",
        steps=(
            make(
                job("train", 1, count=2, indexed=True, image="pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
                    command=["sh", "-c", "torchrun --nnodes=2 --nproc_per_node=1 train.py || exec sleep 3600"]),
            ),
        ),
    ),
    fails(
        "CUDA newer than the driver", "DRV-11",
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
    ),
    fails(
        "a program that was not built for this GPU", "DRV-15",
        "CUDA error: no kernel image is available for execution on the device",
    ),
    fails(
        "the NVLink fabric is not up", "DRV-16",
        "CUDA error 802: system not yet initialized",
    ),
    Break(
        what="the pod's own memory limit", first="IMG-06", names=BROKEN,
        steps=(
            make({**pod(restartPolicy="Always", nodeName=ELSEWHERE), "status": {
                "phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{
                    "name": "main", "image": CUDA, "imageID": "", "ready": False, "restartCount": 3,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                }],
            }}),
        ),
        played="no process of the lab is held to a memory limit: the kubelet's status is written",
    ),
    Break(
        what="GPUs and processors of two NUMA nodes", first="TOP-01", names=BROKEN, target=f"pod {BROKEN}",
        steps=(
            make({**pod(nodeName=ELSEWHERE), "status": {
                "phase": "Failed", "reason": "TopologyAffinityError",
                "message": "Pod was rejected: Resources cannot be allocated with Topology locality",
            }}),
        ),
        played="the lab's kubelet has no topology manager: its refusal is written",
    ),
)  # fmt: skip
