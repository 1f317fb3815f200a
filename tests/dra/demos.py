"""The sample manifests of the drivers that kgpu's DRA driver stands in for, and what is to be seen when they are played.

``nvidia``: those of NVIDIA's DRA driver as they are there (names, images, commands). ``example``: the cases of
Kubernetes' example driver, with NVIDIA's driver name, and with its parameters in place of that one's: what a container
has is read from ``nvidia-smi -L`` there in place of its variables, how a GPU is shared from the driver, and partitions
are MIG slices. A played manifest is applied, looked at, and deleted within the time that the example driver's own
script allows. Played on the embedded lab and on the real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu.hw.simulator import mig
from kgpu.hw.simulator.state import DriverState

MANIFESTS: Final = Path(__file__).parent / "demo_manifests"
GPUS: Final = MANIFESTS / "gpus.yaml"
WHOLE: Final = 9
"""GPUs of the node that are not cut."""
HALF_BALANCED: Final = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")
"""The layout that NVIDIA's page has its A100s cut to before."""
SHARED: Final = "TimeSlicingSettings=true,MPSSupport=true"
MADE: Final = "DynamicMIG=true"
DELETED_WITHIN: Final = "25s"
CLAIMS: Final = "/apis/resource.k8s.io/v1"
PASSED: Final = "Test PASSED"
_DEVICE: Final = re.compile(r"UUID: ((?:GPU|MIG)-[0-9a-f-]+)")
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One manifest. ``sees``: containers (``POD/CONTAINER``) that see the same devices, and how many; others see others.
    A pod of a Deployment is ``pod.N``. ``passes``: containers whose program says that it has passed. ``gets``: by
    ``POD REQUEST`` the time slice of the GPU that it was given. ``limits``: by such a request what a program on its GPU
    is told of its memory. ``waits``: the pods get nothing, and these words say why. ``batch``: which are played beside
    each other. ``beta``: it needs resource.k8s.io/v1beta1.
    """

    file: str
    batch: int
    sees: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    gets: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    waits: str = ""
    beta: bool = False
    gates: str = SHARED

    @property
    def text(self) -> str:
        return (MANIFESTS / f"{self.file}.yaml").read_text()

    @property
    def namespace(self) -> str:
        return re.findall(r"kind: Namespace\nmetadata: {name: ([a-z0-9-]+)", self.text)[0]

    @property
    def objects(self) -> str:
        """All of it but the namespace."""
        return self.text.partition("---\n")[2]


_TENTH: Final = "of 8192 MiB"
_LIMITED: Final = "of 10240 MiB"
DEMOS: Final = (
    Demo(file="nvidia/gpu-test1", batch=1, sees={("pod1/ctr",): 1, ("pod2/ctr",): 1}),
    Demo(file="nvidia/gpu-test2", batch=1, sees={("pod/ctr0", "pod/ctr1"): 1}),
    Demo(file="nvidia/gpu-test3", batch=1, sees={("pod1/ctr", "pod2/ctr"): 1}),
    Demo(file="nvidia/gpu-test4", batch=1, sees={(f"pod.{pod}/ctr{n}",): 1 for pod in range(4) for n in range(4)}),
    Demo(
        file="nvidia/gpu-test5", batch=1, passes=("pod0/ts-ctr0", "pod0/ts-ctr1", "pod0/mps-ctr0", "pod0/mps-ctr1"),
        gets={"pod0 ts-gpu": 3, "pod0 mps-gpu": 0}, limits={"pod0 mps-gpu": _LIMITED},
    ),
    Demo(
        file="nvidia/gpu-test-mps", batch=1, passes=("test-pod/mps-ctr0", "test-pod/mps-ctr1"),
        gets={"test-pod mps-gpu": 0}, limits={"test-pod mps-gpu": _LIMITED},
    ),
    Demo(file="nvidia/gpu-full", batch=1, passes=("gpu-full-pod/cuda-container",)),
    Demo(file="nvidia/gpu-test6", batch=0, waits="no such key: index"),
    Demo(file="nvidia/gpu-test7", batch=2, sees={("gpu-pod/ctr0",): 1, ("gpu-pod/ctr1",): 1}, beta=True),
    Demo(file="nvidia/gpu-test-count", batch=3, gets={"gpu-pod gpu": 0, "gpu-pod gpu#1": 0}, beta=True),
    Demo(file="example/basic-resourceclaimtemplate", batch=4, sees={("pod0/ctr0",): 1, ("pod1/ctr0",): 1}),
    Demo(file="example/basic-multiple-requests", batch=4, sees={("pod0/ctr0",): 2}),
    Demo(
        file="example/basic-shared-claim-across-containers", batch=4, sees={("pod0/ctr0", "pod0/ctr1"): 1},
        gets={"pod0 gpu": 0},
    ),
    Demo(
        file="example/basic-shared-claim-across-pods", batch=4, sees={("pod0/ctr0", "pod1/ctr0"): 1},
        gets={"pod0 gpu": 0},
    ),
    Demo(
        file="example/basic-resourceclaim-opaque-config", batch=4,
        sees={("pod0/ts-ctr0", "pod0/ts-ctr1"): 1, ("pod0/sp-ctr0", "pod0/sp-ctr1"): 1},
        gets={"pod0 ts-gpu": 3, "pod0 sp-gpu": 0}, limits={"pod0 sp-gpu": _TENTH},
    ),
    Demo(file="example/admin-access", batch=4, sees={("pod0/ctr0",): WHOLE}),
    Demo(
        file="example/initcontainer-shared-gpu", batch=2, sees={("pod0/init0", "pod0/ctr0"): 1}, gets={"pod0 gpu": 0}
    ),
    Demo(file="example/cel-selector", batch=2, sees={("pod0/ctr0",): 1}),
    Demo(
        file="example/prioritized-alternatives", batch=2, sees={("pod0/ctr0",): 1, ("pod1/ctr0",): 1},
        gets={"pod0 gpu/older-gpu": 0, "pod1 gpu/latest-gpu": 0},
    ),
    Demo(file="example/extended-resource-request", batch=2, sees={("pod0/ctr0",): 1, ("pod1/ctr0",): 1}),
    Demo(
        file="example/subrequest-config-scoping", batch=3,
        sees={("pod0/ctr0",): 2, ("pod1/ctr0",): 2, ("pod2/ctr0",): 2},
        gets={
            "pod0 gpu/older-gpu": 3, "pod0 extra": 0, "pod1 gpu/latest-gpu": 1, "pod1 extra": 0,
            "pod2 gpu/latest-gpu": 3, "pod2 extra": 0,
        },
    ),
    Demo(file="example/partitionable-devices", batch=5, sees={("pod0/ctr0",): 2}, gates=MADE),
)  # fmt: skip


class Stage(Protocol):
    """A cluster with the demos' node: ``root`` is its driver."""

    root: Path

    def kubectl(self, *words: str, stdin: str | None = None) -> str: ...

    def ask(self, path: str) -> Any:
        """What the API server has at this path: an object, or the text of a log."""
        ...

    def until(self, condition: Callable[[], Any], what: str) -> Any: ...


def cut(root: Path) -> None:
    """The A100s as NVIDIA's page has them; the last one stays whole."""
    for gpu in range(4):
        mig.partition(root, gpu, HALF_BALANCED)


def batches(gates: str, *, beta: bool) -> list[list[Demo]]:
    """What is played beside each other under these gates."""
    played = [demo for demo in DEMOS if demo.gates == gates and (beta or not demo.beta)]
    return [[demo for demo in played if demo.batch == batch] for batch in sorted({one.batch for one in played})]


def play(stage: Stage, demos: Sequence[Demo]) -> None:
    """Apply all of them, look at each, delete them. Their namespaces stay."""
    try:
        stage.kubectl("apply", "-f", "-", stdin="---\n".join(demo.text for demo in demos))
        seen = [device for demo in demos for device in _Played(stage, demo).judge()]
        assert len(seen) == len(set(seen)), "a device is in two demos"
    except BaseException:
        for demo in demos:
            print(demo.file, stage.kubectl("describe", "pods,resourceclaims", "-n", demo.namespace)[-6000:])
        raise
    every = "---\n".join(demo.objects for demo in demos)
    stage.kubectl("delete", "-f", "-", f"--timeout={DELETED_WITHIN}", stdin=every)


class _Played:
    def __init__(self, stage: Stage, demo: Demo) -> None:
        self._stage = stage
        self._demo = demo

    def judge(self) -> list[str]:
        """What its containers see; admin access sees what others have, and counts for nothing."""
        what = f"{self._demo.file} to be as it says"
        if self._demo.waits:
            self._stage.until(lambda: self._demo.waits in self._said(), what)
            assert not any(pod["spec"].get("nodeName") for pod in self._pods().values())
            return []
        seen = self._seen(self._stage.until(self._complete, what))
        if self._demo.gets:
            self._given()
        for request, words in self._demo.limits.items():
            self._probe(request, words)
        return [] if self._demo.file.endswith("admin-access") else seen

    def _complete(self) -> dict[str, str]:
        """What its containers say, once each says what it is to; nothing before."""
        logs = {key: text for name, pod in self._pods().items() if _begun(pod) for key, text in self._logs(name, pod)}
        seen = all(_DEVICE.search(logs.get(one, "")) for containers in self._demo.sees for one in containers)
        passed = all(PASSED in logs.get(one, "") for one in self._demo.passes)
        given = not self._demo.gets or all(map(_begun, self._pods().values()))
        return logs if logs and seen and passed and given else {}

    def _logs(self, name: str, pod: Object) -> Iterator[tuple[str, str]]:
        path = f"{self._pods_path}/{pod['metadata']['name']}/log"
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            yield f"{name}/{container['name']}", self._stage.ask(f"{path}?container={container['name']}")

    def _seen(self, logs: Mapping[str, str]) -> list[str]:
        every: list[str] = []
        for containers, count in self._demo.sees.items():
            views = {frozenset(_devices(logs[container])) for container in containers}
            assert [len(view) for view in views] == [count], f"{self._demo.file}: {containers} see {views}"
            every += next(iter(views))
        assert len(every) == len(set(every)) == sum(self._demo.sees.values()), self._demo.file
        return every

    def _given(self) -> None:
        """Which request got which device, and the time slice that its GPU has."""
        state = DriverState.open(self._stage.root / "state", writable=False)
        try:
            slices = {f"gpu-{index}": int(state.gpu(index).timeslice) for index in range(state.gpu_count)}
        finally:
            state.close()
        found = {}
        for name, pod in self._pods().items():
            for result in self._claim(pod)["status"]["allocation"]["devices"]["results"]:
                key = f"{name} {result['request']}"
                found[key if key not in found else f"{key}#1"] = slices[result["device"]]
        wanted = {key: value for key, value in found.items() if key.partition(" ")[0] in _pods_of(self._demo.gets)}
        assert wanted == self._demo.gets, self._demo.file

    def _probe(self, request: str, words: str) -> None:
        """A pod beside that names the same claim is told how much memory it may have."""
        pod, _, name = request.partition(" ")
        claim = self._claim(self._pods()[pod])["metadata"]["name"]
        container = {
            "name": "c", "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
            "command": ["./vectoradd", "--memory"], "resources": {"claims": [{"name": "its", "request": name}]},
        }  # fmt: skip
        spec = {
            "restartPolicy": "Never", "containers": [container],
            "resourceClaims": [{"name": "its", "resourceClaimName": claim}],
        }  # fmt: skip
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
        self._stage.kubectl("apply", "-n", self._demo.namespace, "-f", "-", stdin=json.dumps(made))

        def said() -> str:
            probe = self._stage.ask(f"{self._pods_path}/probe")
            return dict(self._logs("probe", probe)).get("probe/c", "") if _begun(probe) else ""

        assert words in self._stage.until(said, f"{self._demo.file} {request} to be told its memory")
        self._stage.kubectl("delete", "pod", "probe", "-n", self._demo.namespace)

    def _claim(self, pod: Object) -> Object:
        stated = pod["status"].get("resourceClaimStatuses") or []
        named = [
            one["resourceClaimName"] for one in (*stated, *pod["spec"]["resourceClaims"]) if "resourceClaimName" in one
        ]
        found: Object = self._stage.ask(f"{CLAIMS}/namespaces/{self._demo.namespace}/resourceclaims/{named[0]}")
        return found

    def _pods(self) -> dict[str, Object]:
        """By name; those of a Deployment by its name and a number."""
        found = {}
        for number, pod in enumerate(self._stage.ask(self._pods_path)["items"]):
            owned = pod["metadata"].get("ownerReferences")
            found[f"pod.{number}" if owned else pod["metadata"]["name"]] = pod
        return found

    @property
    def _pods_path(self) -> str:
        return f"/api/v1/namespaces/{self._demo.namespace}/pods"

    def _said(self) -> str:
        return self._stage.kubectl("describe", "pods", "-n", self._demo.namespace)


def _begun(pod: Object) -> bool:
    """Whether each of its containers has begun."""
    status = pod["status"]
    every = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return bool(every) and all(one.get("containerID") for one in every)


def _devices(log: str) -> list[str]:
    """The slices of a listing, or the GPUs where there are none."""
    found = _DEVICE.findall(log)
    return [uuid for uuid in found if uuid.startswith("MIG-")] or found


def _pods_of(requests: Iterable[str]) -> set[str]:
    return {request.partition(" ")[0] for request in requests}
