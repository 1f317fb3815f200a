"""Pods with claims that come and go while the DRA driver and the kubelet are killed, and what must hold all the time."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.lab.real.cluster import RealLab
from tests.lab.real.conftest import PODS, until

LISTED: Final = "that is all"
LISTING: Final = f"nvidia-smi -L; echo {LISTED}; exec sleep 3600"
"""What a pod does that tells its GPUs. A log has its lines one after the other: before the last it says too little."""
LABEL: Final = "churn"
TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
ALIVE: Final = 6
"""How many pods there are at a time."""
_MIG: Final = "device.attributes['gpu.nvidia.com'].profile == '{}'"
ASKED: Final[dict[str, dict[str, Any]]] = {
    "one": {"deviceClassName": "gpu.nvidia.com"},
    "two": {"deviceClassName": "gpu.nvidia.com", "count": 2},
    "small": {"deviceClassName": "mig.nvidia.com", "count": 3, "selectors": [{"cel": {"expression": _MIG.format("1g.10gb")}}]},
    "half": {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": _MIG.format("3g.40gb")}}]},
}  # fmt: skip
"""What claims ask for, by the name of their template."""
_LINE: Final = re.compile(
    r"^\[pod/(?P<pod>[^/]+)/[^\]]+\] .*\(UUID: (?P<uuid>(?P<kind>GPU|MIG)-[0-9a-f-]+)\)", re.MULTILINE
)
_LAST: Final = re.compile(rf"^\[pod/(?P<pod>[^/]+)/[^\]]+\] {LISTED}$", re.MULTILINE)


@dataclass
class Churn:
    """The pods of a test, by a seed."""

    lab: RealLab
    seed: int
    alive: dict[str, str] = field(default_factory=dict)
    made: int = 0
    most: int = 0
    """How many pods had begun at a time, at most."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def templates(self) -> None:
        for name, exactly in ASKED.items():
            spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
            status, answer = self.lab.server("POST", TEMPLATES, {"metadata": {"name": name}, "spec": spec})
            assert status in {201, 409}, answer

    def fill(self) -> None:
        """Make pods until there are ``ALIVE``."""
        while len(self.alive) < ALIVE:
            self.made += 1
            name, kind = f"{LABEL}-{self.seed}-{self.made}", self.chance.choice(list(ASKED))
            container = {
                "name": "cuda", "image": "kgpu.dev/cuda:base", "command": ["sh", "-c", LISTING],
                "resources": {"claims": [{"name": "mine"}]},
            }  # fmt: skip
            pod = {
                "metadata": {"name": name, "labels": {"test": LABEL}},
                "spec": {
                    "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
                    "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": kind}],
                },
            }  # fmt: skip
            status, answer = self.lab.server("POST", PODS, pod)
            assert status == 201, answer
            self.alive[name] = kind

    def end(self, number: int) -> None:
        """Delete so many of them."""
        for name in self.chance.sample(sorted(self.alive), min(number, len(self.alive))):
            status, answer = self.lab.server("DELETE", f"{PODS}/{name}")
            assert status in {200, 202}, answer
            del self.alive[name]

    def pause(self) -> None:
        time.sleep(self.chance.uniform(0.0, 1.5))

    def held(self) -> dict[str, tuple[set[str], set[str]]]:
        """What each pod that has said all has by its own words: GPUs, and slices with the GPUs that they are of in the
        first.
        """
        done = self.lab.kubectl_run(
            "logs", "--selector", f"test={LABEL}", "--prefix", "--tail=-1", "--max-log-requests=50"
        )
        found: dict[str, tuple[set[str], set[str]]] = {}
        for line in _LINE.finditer(done.stdout):
            found.setdefault(line["pod"], (set(), set()))[line["kind"] == "MIG"].add(line["uuid"])
        complete = {line["pod"] for line in _LAST.finditer(done.stdout)}
        return {name: devices for name, devices in found.items() if name in self.alive and name in complete}

    def check(self) -> int:
        """No device is in two pods that are there, and each pod has what it asked for; how many have begun."""
        held = self.held()
        slices = [uuid for _, mine in held.values() for uuid in mine]
        whole = [uuid for gpus, mine in held.values() if not mine for uuid in gpus]
        cut = {uuid for gpus, mine in held.values() if mine for uuid in gpus}
        assert len(slices) == len(set(slices)), held
        assert len(whole) == len(set(whole)), held
        assert not cut & set(whole), held
        for name, (gpus, mine) in held.items():
            wanted = {"one": (1, 0), "two": (2, 0), "small": (len(gpus), 3), "half": (1, 1)}[self.alive[name]]
            assert (len(gpus), len(mine)) == wanted, (name, held[name])
        self.most = max(self.most, len(held))
        return len(held)

    def settled(self) -> None:
        """All pods that are there begin in the end, which takes room: whole GPUs may be in the way of slices."""
        until(lambda: self.check() == len(self.alive) or self._makes_room(), "every pod to begin")

    def _makes_room(self) -> bool:
        """Delete a pod that has begun, so that the others find GPUs; never the last."""
        begun = sorted(self.held())
        if len(begun) > 1 and self.chance.random() < 0.2:
            self.lab.server("DELETE", f"{PODS}/{begun[0]}")
            del self.alive[begun[0]]
        return False
