"""What can't be shared by MPS, in an embedded lab with the operator: the refusal in state, Event and ``kgpu status``,
with the node, what failed, what was expected and what to do; and what was offered before stays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL, GPU_OPERATOR_NAMESPACE, GPU_RESOURCE
from kgpu.hw.simulator import mig
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from tests import on_real
from tests.lab import asking
from tests.lab.mps_story import SHARED, sharing

pytestmark = pytest.mark.timeout(900)
WAIT_S = 180.0
CONFIGS = "plugin-configs"
TIME_SLICING = ", timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}"
TEXTS = {"plain": "version: v1\n", "mps": sharing(), "many": sharing(49), "both": sharing(more=TIME_SLICING)}
FOUR_SHARES = {GPU_RESOURCE: 1, SHARED: 4}


@dataclass(frozen=True)
class Refused:
    """What is told: the Event's reason, and the parts of the error."""

    reason: str
    failed: str
    expected: str
    remedy: str


MANY = Refused(
    "ConfigRefused", "maximum allowed replicas exceeded: 49 > 48", "at most 48 shares of a GPU", "lower it to 48"
)
BOTH = Refused(
    "ConfigRefused", "timeSlicing and mps are both given", "one kind of sharing", "remove sharing.timeSlicing or"
)
MIXED = Refused(
    "ConfigRefused", "--mig-strategy=mixed is not supported with MPS", "MIG strategy none or single",
    "change flags.migStrategy",
)  # fmt: skip
MIG_ON = Refused(
    "SharingImpossible",
    "the MIG mode of GPUs 0, 1 is on",
    "sharing.mps on nodes without MIG",
    "turn their MIG mode off",
)


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """Two GPUs, and a policy that names configurations of the device plugin; ``mps`` is the default."""
    del kubectl
    folder = tmp_path_factory.mktemp("refused") / "lab"
    made = EmbeddedLab("refused", folder, QuietProgress(), first=FirstNode(gpus=2), operator=True)
    try:
        made.up()
        run_kubectl(made, "apply", "--filename", "-", stdin=json.dumps({
            "apiVersion": "v1", "kind": "ConfigMap", "data": TEXTS,
            "metadata": {"name": CONFIGS, "namespace": GPU_OPERATOR_NAMESPACE},
        }))  # fmt: skip
        patch(made, {"devicePlugin": {"config": {"name": CONFIGS, "default": "mps"}}})
        yield made
    finally:
        made.down()


def patch(lab: EmbeddedLab, spec: dict[str, Any]) -> None:
    change = json.dumps({"spec": spec})
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", change)


def choose(lab: EmbeddedLab, config: str) -> None:
    """Give the node this configuration; "" for the default one."""
    mark = f"{DEVICE_PLUGIN_CONFIG_LABEL}={config}" if config else f"{DEVICE_PLUGIN_CONFIG_LABEL}-"
    run_kubectl(lab, "label", "node", FIRST_NODE, "--overwrite", mark)


def until(lab: EmbeddedLab, condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition."""
    found = on_real.looked_for(condition, WAIT_S)
    if found is None:
        pytest.fail(f"not within {WAIT_S:g} s: {what}; {offered(lab)}; {policy(lab)}")
    return found


def policy(lab: EmbeddedLab) -> dict[str, Any]:
    status: dict[str, Any] = asking.get(lab.folder / "kubeconfig", "clusterpolicy", "cluster-policy").get("status", {})
    return status


def offered(lab: EmbeddedLab) -> dict[str, int]:
    """What pods can have of the node's GPUs."""
    node = asking.get(lab.folder / "kubeconfig", "node", FIRST_NODE)
    counts = {name: int(count) for name, count in node["status"]["allocatable"].items() if "nvidia.com/" in name}
    return {name: count for name, count in counts.items() if count}  # the kubelet keeps former resources at 0


def condition(lab: EmbeddedLab, kind: str) -> tuple[str, str, str]:
    found = next((one for one in policy(lab).get("conditions", ()) if one["type"] == kind), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def settled(lab: EmbeddedLab, counts: dict[str, int]) -> None:
    until(lab, lambda: offered(lab) == counts and policy(lab).get("state") == "ready", f"{counts}, and all is ready")


def events(lab: EmbeddedLab, reason: str) -> list[str]:
    words = ("get", "events", "--all-namespaces", f"--field-selector=reason={reason}", "--output=json")
    return [event["message"] for event in json.loads(lab.kubectl_run(*words).stdout)["items"]]


def is_told(lab: EmbeddedLab, wanted: Refused, *operands: str) -> None:
    """In the conditions of the policy for these operands, in an Event and in ``kgpu status``, with all parts."""
    for kind in operands:
        until(lab, lambda kind=kind: condition(lab, kind)[:2] == ("False", wanted.reason), f"{kind} tells it")
        message = condition(lab, kind)[2]
        for part in (f"node {FIRST_NODE}", wanted.failed, f"expected {wanted.expected}", wanted.remedy):
            assert part in message
    assert policy(lab)["state"] == "notReady"
    parts = (wanted.failed, f"expected {wanted.expected}", f"to do: {wanted.remedy}")
    until(lab, lambda: any(all(part in one for part in parts) for one in events(lab, wanted.reason)), "an Event")
    command = [sys.executable, "-m", "kgpu", "status", "--kubeconfig", str(lab.folder / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shown = " ".join(done.stdout.split())
    assert done.returncode == 3
    problems = shown.split("✘ ")[1:]
    assert len(problems) == 1, "one cause, however many roles read the configuration"
    for part in (f"node {FIRST_NODE}: ", wanted.failed, f"expected {wanted.expected}", f'"{wanted.remedy}'):
        assert part in problems[0]


@pytest.mark.parametrize(
    ("config", "wanted"), [("many", MANY), ("both", BOTH)], ids=["49 shares", "time-slicing beside MPS"]
)
def test_a_configuration_that_can_not_be_leaves_the_shares_of_before(
    lab: EmbeddedLab, config: str, wanted: Refused
) -> None:
    settled(lab, FOUR_SHARES)
    choose(lab, config)
    is_told(lab, wanted, "DevicePluginReady", "MPSReady")
    assert offered(lab) == FOUR_SHARES
    choose(lab, "")
    settled(lab, FOUR_SHARES)


def test_mig_strategy_mixed_leaves_the_shares_of_before(lab: EmbeddedLab) -> None:
    settled(lab, FOUR_SHARES)
    patch(lab, {"mig": {"strategy": "mixed"}})
    is_told(lab, MIXED, "DevicePluginReady", "MPSReady")
    assert offered(lab) == FOUR_SHARES
    choose(lab, "plain")
    settled(lab, {GPU_RESOURCE: 2})
    choose(lab, "")  # the other way round: MPS is asked for where the strategy is mixed already
    is_told(lab, MIXED, "DevicePluginReady")
    assert offered(lab) == {GPU_RESOURCE: 2}
    patch(lab, {"mig": {"strategy": "single"}})
    settled(lab, FOUR_SHARES)


@pytest.mark.parametrize("strategy", ["none", "single"])
def test_a_node_with_mig_mode_on_offers_what_it_did(lab: EmbeddedLab, strategy: str) -> None:
    patch(lab, {"mig": {"strategy": strategy}})
    choose(lab, "plain")
    settled(lab, {GPU_RESOURCE: 2})
    (hardware,) = lab.hardware()
    mig.partition(hardware.root, 0, ["1g.10gb"])
    mig.partition(hardware.root, 1, ["1g.10gb", "1g.10gb"])
    before = {GPU_RESOURCE: 2 if strategy == "none" else 3}
    until(lab, lambda: offered(lab) == before, f"{before}")
    choose(lab, "")
    is_told(lab, MIG_ON, "DevicePluginReady")
    assert offered(lab) == before
    for gpu in (0, 1):
        mig.disable(hardware.root, gpu)
    settled(lab, FOUR_SHARES)
