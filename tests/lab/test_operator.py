"""kgpu's own operator in the embedded lab: it runs the agents of three nodes as pods, and what a person does to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import LabError
from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.formats.names import (
    ACT_APP,
    AGENT_DAEMON_SET,
    FINDER_DAEMON_SET,
    GPU_OPERATOR_NAMESPACE,
    GPU_RESOURCE,
    LABEL_DEPLOY_PREFIX,
    NFD_OS_ID,
    NVIDIA_DOMAIN,
    ROLES_ANNOTATION,
    VALIDATED_CONDITION,
)
from kgpu.hw.simulator import operate
from kgpu.hw.vendor import vendors
from kgpu.lab import operator
from kgpu.lab.embedded import model
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import EmbeddedState, FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.folder import has_operator
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from kgpu.lab.real.configs import PAUSE_IMAGE
from tests import polling
from tests.lab import asking
from tests.lab.played import Played, wrong

pytestmark = pytest.mark.timeout(300)
WAIT_S = 90.0
GPUS = {"gpu-node-1": "8", "l4-1": "2"}
CPU = "cpu-1"
RULED = "example.com/new-kernel"
POLICY = ("clusterpolicy", "cluster-policy")
Object = dict[str, Any]
# What kubectl shows of a fleet that is not as it should be.
EVIDENCE = (
    ("get", "nodes,pods,clusterpolicies", "--all-namespaces", "--output", "wide"),
    (
        "get",
        "nodes",
        "--output",
        f"custom-columns=N:.metadata.name,R:.metadata.annotations.{ROLES_ANNOTATION}".replace(".dev", r"\.dev"),
    ),
    ("logs", "--namespace", GPU_OPERATOR_NAMESPACE, "deployment/gpu-operator", "--tail", "40"),
)


@pytest.fixture(scope="module")
def fleet(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A lab with the operator, two kinds of GPU nodes and one without."""
    del kubectl
    folder = tmp_path_factory.mktemp("operated") / "lab"
    lab = EmbeddedLab("operated", folder, QuietProgress(), first=FirstNode(), operator=True)
    try:
        lab.up()
        manage.add_to_running(folder, "l4", gpus=2)
        manage.add_to_running(folder, "cpu")
        yield lab
    finally:
        lab.down()


@pytest.fixture(autouse=True)
def faults_end_with_their_test(fleet: EmbeddedLab) -> Iterator[None]:
    """So that a test which fails takes no other along."""
    yield
    for name in GPUS:
        operate.clear(fleet.nodes / name / "hw")
    run_kubectl(fleet, "delete", "nodeoperations", "--all")


def get(lab: EmbeddedLab, *words: str) -> Object:
    found: Object = asking.get(lab.kubeconfig, *words)
    return found


def until(lab: EmbeddedLab, condition: Callable[[], bool], what: str) -> None:
    if not polling.holds(condition, seconds=WAIT_S):
        shown = "\n".join(lab.kubectl_run(*words).stdout for words in EVIDENCE)
        pytest.fail(f"not within {WAIT_S:g} s: {what}; {offered(lab)}\n{shown}")


def offered(lab: EmbeddedLab) -> dict[str, str]:
    """GPUs that can be had, by node; nodes that offer none are left out."""
    counts = {
        one["metadata"]["name"]: one["status"]["allocatable"].get(GPU_RESOURCE, "0")
        for one in get(lab, "nodes")["items"]
    }
    return {name: count for name, count in counts.items() if count != "0"}


def state(lab: EmbeddedLab) -> str:
    return str((get(lab, *POLICY).get("status") or {}).get("state"))


def settled(lab: EmbeddedLab) -> None:
    """As the lab was made."""
    until(lab, lambda: offered(lab) == GPUS and state(lab) == "ready", "every GPU is offered and the policy is ready")


def own_labels(node: Object) -> set[str]:
    return {key for key in node["metadata"]["labels"] if key.split("/")[0] == NVIDIA_DOMAIN}


def on_nodes(lab: EmbeddedLab) -> dict[str, set[str]]:
    """Which nodes have a pod, by its label ``app``."""
    found: dict[str, set[str]] = {}
    for pod in get(lab, "pods", "--namespace", GPU_OPERATOR_NAMESPACE)["items"]:
        found.setdefault(pod["metadata"]["labels"]["app"], set()).add(pod["spec"]["nodeName"])
    return {app: nodes for app, nodes in found.items() if app in (AGENT_DAEMON_SET, FINDER_DAEMON_SET)}


def test_the_readme_shows_the_table_that_this_lab_has(fleet: EmbeddedLab) -> None:
    settled(fleet)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    table = readme.partition("\nnode ")[2].partition("\nswitched off")[0].splitlines()
    assert len(table) == 4
    wanted = [f"node {table[0]}", *table[2:]]
    command = [sys.executable, "-m", "kgpu", "status", "--kubeconfig", str(fleet.kubeconfig)]

    def shown() -> list[str]:
        env = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        return [line.rstrip() for line in done.stdout.splitlines()]

    until(fleet, lambda: [line for line in wanted if line not in shown()] == [], f"{wanted} in {shown()}")


def test_nodes_with_gpus_have_an_agent_and_offer_some_and_the_others_have_a_finder(fleet: EmbeddedLab) -> None:
    settled(fleet)
    wanted = {AGENT_DAEMON_SET: {*GPUS}, FINDER_DAEMON_SET: {CPU}}
    until(fleet, lambda: on_nodes(fleet) == wanted, "one pod per node")
    until(fleet, lambda: NFD_OS_ID in get(fleet, "node", CPU)["metadata"]["labels"], "what the finder finds")
    nodes = {node["metadata"]["name"]: node for node in get(fleet, "nodes")["items"]}
    validated = {
        name
        for name, node in nodes.items()
        for one in node["status"]["conditions"]
        if one["type"] == VALIDATED_CONDITION and one["status"] == "True"
    }
    assert validated == GPUS.keys()
    assert own_labels(nodes[CPU]) == set()
    assert {json.loads(nodes[name]["metadata"]["annotations"][ROLES_ANNOTATION])["gpus"] for name in GPUS} == {8, 2}


def test_no_agent_is_the_labs_own(fleet: EmbeddedLab) -> None:
    assert {one.agent for one in manage.listing(fleet.folder).values()} == {False}
    assert not [*fleet.nodes.glob("*/agent.pid")]


@pytest.mark.parametrize("story", ["first-gpu-pod", "unhealthy-gpu", "mig-mixed"])
def test_stories_are_played_as_on_other_labs(fleet: EmbeddedLab, story: str) -> None:
    settled(fleet)
    assert not wrong(Played().on(fleet, story))


def test_top_finds_the_exporters_and_shows_who_uses_what(fleet: EmbeddedLab) -> None:
    settled(fleet)
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": "l4-1"},
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {"name": "c", "image": "nvcr.io/nvidia/cuda:12.5.0-base-ubuntu22.04", "command": ["sleep", "3600"],
             "resources": {"limits": {GPU_RESOURCE: 1}}}
        ],
    }  # fmt: skip
    user = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": spec}
    run_kubectl(fleet, "apply", "-f", "-", stdin=json.dumps(user))
    command = [sys.executable, "-m", "kgpu", "top", "-o", "json", "--kubeconfig", str(fleet.kubeconfig)]

    def shown() -> dict[str, list[list[str]]]:
        """By node: of each GPU the pods."""
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
        return {
            node["hostname"]: [[pod["pod"] for pod in gpu["pods"]] for gpu in node["gpus"]] for node in told["nodes"]
        }

    try:
        wanted = {"gpu-node-1": [[]] * 8, "l4-1": [[], ["user"]]}
        until(
            fleet,
            lambda: {name: sorted(pods) for name, pods in shown().items()} == wanted,
            "top shows the pod on its GPU",
        )
    finally:
        run_kubectl(fleet, "delete", "pod", "user", "--wait=true")


def test_a_pod_that_trains_is_busy_and_warm_in_top_and_idle_seconds_after_it_is_gone(fleet: EmbeddedLab) -> None:
    settled(fleet)
    command = [sys.executable, "-m", "kgpu", "top", "-o", "json", "--kubeconfig", str(fleet.kubeconfig)]
    labels = {"app": "train"}
    container = {
        "name": "train", "image": "nvcr.io/nvidia/pytorch:24.01-py3", "command": ["gpu-load"],
        "resources": {"limits": {GPU_RESOURCE: 1}},
    }  # fmt: skip
    pod = {"nodeSelector": {"kubernetes.io/hostname": "l4-1"}, "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": labels}, "spec": {**pod, "containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    train = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"}, "spec": spec}

    def gpus() -> list[Object]:
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
        return next((node["gpus"] for node in told["nodes"] if node["hostname"] == "l4-1"), [])

    def busy(gpu: Object) -> bool:
        warm = gpu["power.draw"] > 40 and gpu["temperature.gpu"] > 45
        return bool(gpu["utilization.gpu"] >= 90 and gpu["memory.used"] > 15_000 and warm)

    def idle(gpu: Object) -> bool:
        return bool(gpu["utilization.gpu"] == 0 and gpu["memory.used"] < 1000 and gpu["power.draw"] < 20)

    def one_at_work() -> bool:
        now = gpus()
        held, free = [gpu for gpu in now if gpu["pods"]], [gpu for gpu in now if not gpu["pods"]]
        return [busy(gpu) for gpu in held] == [idle(gpu) for gpu in free] == [True]

    run_kubectl(fleet, "apply", "-f", "-", stdin=json.dumps(train))
    try:
        until(fleet, one_at_work, "top shows the GPU at work, and no other")
    finally:
        run_kubectl(fleet, "delete", "deployment", "train", "--wait=true")
    until(fleet, lambda: [idle(gpu) for gpu in gpus()] == [True, True], "both GPUs are idle again")


def test_a_label_takes_the_gpus_of_one_node_away(fleet: EmbeddedLab) -> None:
    settled(fleet)
    label = f"{LABEL_DEPLOY_PREFIX}device-plugin"
    run_kubectl(fleet, "label", "node", "l4-1", f"{label}=false", "--overwrite")
    until(fleet, lambda: offered(fleet) == {"gpu-node-1": "8"}, "l4-1 offers nothing")
    run_kubectl(fleet, "label", "node", "l4-1", f"{label}-")  # with a value it would stay the user's
    settled(fleet)


def test_an_operand_is_looked_at_and_restarted_by_its_name(fleet: EmbeddedLab) -> None:
    settled(fleet)

    def kgpu(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kgpu", *words, "--kubeconfig", str(fleet.kubeconfig)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)

    def agents() -> dict[str, str]:
        found = get(fleet, "pods", "--namespace", GPU_OPERATOR_NAMESPACE, "--selector", f"app={AGENT_DAEMON_SET}")
        return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in found["items"]}

    shown = kgpu("logs", "device-plugin", "--tail", "-1")
    assert {line.split("]")[0] for line in shown.stdout.splitlines()} == {"[gpu-node-1", "[l4-1"}
    assert "the agent does the work of the device plugin" in shown.stderr
    assert kgpu("logs", "gfd", "--node", "l4-1", "--previous").stderr.endswith("had no run before\n")
    following = [
        sys.executable,
        "-m",
        "kgpu",
        "logs",
        "gfd",
        "--node",
        "l4-1",
        "-f",
        "--kubeconfig",
        str(fleet.kubeconfig),
    ]
    with subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "a kubelet that has refused a log is asked again"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    before = agents()
    done = kgpu("restart", "device-plugin", "--node", "l4-1")
    assert done.returncode == 0, done.stderr
    after = agents()
    assert {name for name in before if before[name] != after[name]} == {"l4-1"}
    done = kgpu("restart", "gfd", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["nodes"]) == (0, ["gpu-node-1", "l4-1"]), done.stderr
    assert not set(after.values()) & set(agents().values())
    settled(fleet)


def test_the_daemon_set_comes_back(fleet: EmbeddedLab) -> None:
    settled(fleet)
    name = ("daemonset", AGENT_DAEMON_SET, "--namespace", GPU_OPERATOR_NAMESPACE)
    before = get(fleet, *name)["metadata"]["uid"]
    run_kubectl(fleet, "delete", *name)
    until(
        fleet,
        lambda: fleet.kubectl_run("get", *name, "-o", "jsonpath={.metadata.uid}").stdout not in {"", before},
        "another DaemonSet",
    )
    settled(fleet)


def test_time_slicing_by_a_config_map_that_the_policy_names(fleet: EmbeddedLab) -> None:
    settled(fleet)
    config = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 10\n"
    place = ("--namespace", GPU_OPERATOR_NAMESPACE)
    run_kubectl(fleet, "create", "configmap", "time-slicing-config", *place, f"--from-literal=any={config}")
    former = get(fleet, *POLICY)["spec"]["devicePlugin"]["config"]
    told = {"name": "time-slicing-config", "default": "any"}
    try:
        for wanted, counts in ((told, {"gpu-node-1": "80", "l4-1": "20"}), (former, GPUS)):
            change = json.dumps({"spec": {"devicePlugin": {"config": wanted}}})
            run_kubectl(fleet, "patch", *POLICY, "--type", "merge", "-p", change)
            until(fleet, lambda counts=counts: offered(fleet) == counts, f"{counts} with {wanted}")
    finally:
        run_kubectl(fleet, "delete", "configmap", "time-slicing-config", *place)
    settled(fleet)


def test_an_agent_that_is_killed_is_started_again(fleet: EmbeddedLab) -> None:
    settled(fleet)

    def pod() -> Object:
        words = ("--namespace", GPU_OPERATOR_NAMESPACE, "-l", f"app={AGENT_DAEMON_SET}")
        pods = get(fleet, "pods", *words, "--field-selector", "spec.nodeName=l4-1")["items"]
        found: Object = pods[0]
        return found

    container = pod()["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    pid = json.loads((fleet.nodes / "l4-1" / "c" / container[:16] / "state.json").read_text())["pid"]
    subprocess.run(["kill", "-9", str(pid)], check=True)
    until(fleet, lambda: pod()["status"]["containerStatuses"][0]["restartCount"] == 1, "the agent runs again")
    settled(fleet)


def workload(lab: EmbeddedLab) -> str:
    """A Deployment of two pods with a GPU each; the first one's name."""
    labels = {"app": "trainer"}
    container = {"name": "c", "image": PAUSE_IMAGE, "resources": {"limits": {GPU_RESOURCE: "1"}}}
    spec = {
        "replicas": 2, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }  # fmt: skip
    obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "trainer"}, "spec": spec}
    run_kubectl(lab, "apply", "-f", "-", stdin=json.dumps(obj))
    run_kubectl(lab, "rollout", "status", "deployment/trainer", "--timeout=60s")
    return str(get(lab, "pods", "-l", "app=trainer")["items"][0]["metadata"]["name"])


def boot_of(lab: EmbeddedLab, name: str) -> str:
    return str(get(lab, "node", name)["status"]["nodeInfo"]["bootID"])


@pytest.mark.parametrize("name", GPUS)
def test_a_lost_gpu_is_there_again_after_a_reboot(fleet: EmbeddedLab, name: str) -> None:
    """On each node, so that one of them is the operator's own: it goes on from the record."""
    settled(fleet)
    before = boot_of(fleet, name)
    workload(fleet)
    operate.inject(fleet.nodes / name / "hw", "xid", gpu=1, xid=79)
    until(fleet, lambda: offered(fleet)[name] == str(int(GPUS[name]) - 1), f"{name} offers a GPU less")
    done = subprocess.run(
        [sys.executable, "-m", "kgpu", "node", "reboot", name, "--reason", "Xid 79", "--kubeconfig", str(fleet.kubeconfig)],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the node has rebooted and is healthy" in done.stdout
    assert boot_of(fleet, name) != before
    assert "unschedulable" not in get(fleet, "node", name)["spec"]
    assert not get(fleet, "pods", "--namespace", GPU_OPERATOR_NAMESPACE, "-l", f"app={ACT_APP}")["items"]
    settled(fleet)
    until(
        fleet, lambda: get(fleet, "deployment", "trainer")["status"].get("readyReplicas") == 2, "the workload is back"
    )
    run_kubectl(fleet, "delete", "deployment", "trainer", "--wait=true")
    run_kubectl(fleet, "delete", "nodeoperations", "--all")


def test_a_gpu_is_reset_while_pods_with_others_go_on(fleet: EmbeddedLab) -> None:
    """Every GPU of a node is in use: of eight pods one goes, and its GPU is reset and offered again."""
    settled(fleet)
    labels, node = {"app": "filler"}, "gpu-node-1"
    container = {"name": "c", "image": PAUSE_IMAGE, "resources": {"limits": {GPU_RESOURCE: "1"}}}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}},
    }
    spec = {"replicas": 8, "selector": {"matchLabels": labels}, "template": template}
    filler = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "filler"}, "spec": spec}
    run_kubectl(fleet, "apply", "-f", "-", stdin=json.dumps(filler))
    run_kubectl(fleet, "rollout", "status", "deployment/filler", "--timeout=60s")

    def pods() -> set[str]:
        return {pod["metadata"]["uid"] for pod in get(fleet, "pods", "-l", "app=filler")["items"]}

    before, boot = pods(), boot_of(fleet, node)
    operate.inject(fleet.nodes / node / "hw", "xid", gpu=3, xid=48)
    until(fleet, lambda: offered(fleet)[node] == "7", "the node offers a GPU less")
    done = subprocess.run(
        [sys.executable, "-m", "kgpu", "node", "reset-gpu", node, "--kubeconfig", str(fleet.kubeconfig)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the GPUs are reset and well" in done.stdout
    assert len(before & pods()) == 7, "one pod went"
    assert boot_of(fleet, node) == boot
    assert "unschedulable" not in get(fleet, "node", node)["spec"]
    assert names.OPERATION_ANNOTATION not in get(fleet, "node", node)["metadata"]["annotations"]
    settled(fleet)
    until(fleet, lambda: get(fleet, "deployment", "filler")["status"].get("readyReplicas") == 8, "all eight run again")
    run_kubectl(fleet, "delete", "deployment", "filler", "--wait=true")
    run_kubectl(fleet, "delete", "nodeoperations", "--all")


def test_a_lost_gpu_is_repaired_by_itself_where_that_is_wanted(fleet: EmbeddedLab) -> None:
    """First it is suggested, as nobody has said anything; then the admin lets it happen."""
    settled(fleet)
    operate.inject(fleet.nodes / "l4-1" / "hw", "xid", gpu=0, xid=79)

    def suggested() -> list[Object]:
        return [obj for obj in get(fleet, "nodeoperations")["items"] if obj.get("status")]

    until(fleet, lambda: [obj["status"]["reason"] for obj in suggested()] == ["WaitsForApproval"], "a suggestion")
    (operation,) = suggested()
    assert "GPU 0" in operation["spec"]["reason"]
    assert "unschedulable" not in get(fleet, "node", "l4-1")["spec"]
    run_kubectl(fleet, "delete", "nodeoperations", "--all")
    with repairs(fleet, policy="Reboot"):
        until(
            fleet,
            lambda: [obj["status"].get("phase") for obj in suggested()] == ["Complete"],
            "the node to be rebooted by itself",
        )
        settled(fleet)
        assert [obj["status"]["result"] for obj in suggested()] == ["Succeeded"]


def rule(name: str, operator: str, *values: str) -> str:
    """A NodeFeatureRule about the kernel's main version."""
    term = {"feature": "kernel.version", "matchExpressions": {"major": {"op": operator, "value": [*values]}}}
    rules = [{"name": "kernel", "labels": {RULED: "true"}, "matchFeatures": [term]}]
    kind = {"apiVersion": names.NFD_API_VERSION, "kind": "NodeFeatureRule"}
    return json.dumps({**kind, "metadata": {"name": name}, "spec": {"rules": rules}})


@contextmanager
def feature_rules(fleet: EmbeddedLab) -> Iterator[None]:
    """Rules are carried out while this lasts; with the chart's value the operator gets these rights, too."""
    place = ("--namespace", GPU_OPERATOR_NAMESPACE)
    account = f"--serviceaccount={GPU_OPERATOR_NAMESPACE}:gpu-operator"
    kinds = "nodefeatures.nfd.k8s-sigs.io,nodefeaturerules.nfd.k8s-sigs.io"
    rights = {"follows": ("list,watch", kinds), "defines": ("get,create", "customresourcedefinitions")}
    for one, (verbs, resources) in rights.items():
        grant = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": one}}
        groups = sorted({resource.partition(".")[2] or "apiextensions.k8s.io" for resource in resources.split(",")})
        plain = [resource.partition(".")[0] for resource in resources.split(",")]
        row = {"apiGroups": groups, "resources": plain, "verbs": verbs.split(",")}
        run_kubectl(fleet, "apply", "--filename", "-", stdin=json.dumps({**grant, "rules": [row]}))
        run_kubectl(fleet, "create", "clusterrolebinding", one, f"--clusterrole={one}", account)
    try:
        run_kubectl(fleet, "set", "env", "deployment/gpu-operator", f"{names.ENV_FEATURE_RULES}=true", *place)
        yield
    finally:
        run_kubectl(fleet, "set", "env", "deployment/gpu-operator", f"{names.ENV_FEATURE_RULES}-", *place)
        run_kubectl(fleet, "delete", "clusterrolebinding,clusterrole", *rights)


def test_rules_of_node_features_are_carried_out_where_that_is_wanted(fleet: EmbeddedLab) -> None:
    settled(fleet)
    every = {*GPUS, CPU}

    def having(key: str) -> set[str]:
        return {one["metadata"]["name"] for one in get(fleet, "nodes")["items"] if key in one["metadata"]["labels"]}

    def events() -> list[Object]:
        found = json.loads(run_kubectl(fleet, "get", "events", "--namespace", "default", "--output", "json"))["items"]
        return [one for one in found if one["reason"] == "NodeFeatureRuleRefused"]

    with feature_rules(fleet):
        until(fleet, lambda: having(names.LABEL_FEATURE_RULES) == every, "every node to be labelled by the operator")
        run_kubectl(fleet, "apply", "--filename", "-", stdin=rule("mine", "Gt", "0"))
        applied = time.monotonic()
        until(fleet, lambda: having(RULED) == every, "the rule's label")
        print(f"from a rule to its label on three nodes: {time.monotonic() - applied:.1f} s")
        run_kubectl(fleet, "apply", "--filename", "-", stdin=rule("mine", "Lt", "0"))
        until(fleet, lambda: not having(RULED), "the label to go with the rule's change")
        run_kubectl(fleet, "apply", "--filename", "-", stdin=rule("bad", "InRegexp", "("))
        until(fleet, lambda: bool(events()), "the bad rule's Event")
        assert {one["involvedObject"]["name"] for one in events()} == {"bad"}
        assert having(NFD_OS_ID) == every
    until(fleet, lambda: not having(names.LABEL_FEATURE_RULES), "the operator to take its labels back")
    until(fleet, lambda: having(NFD_OS_ID) == every, "agents to label their nodes themselves")
    settled(fleet)


@contextmanager
def repairs(fleet: EmbeddedLab, **remediation: Any) -> Iterator[None]:
    """Repairs begin by themselves while this lasts; with the chart's value the operator gets the right to that, too."""
    place = ("--namespace", GPU_OPERATOR_NAMESPACE)
    approve = ("--verb=approve", "--resource=nodeoperations.kgpu.dev")
    account = f"--serviceaccount={GPU_OPERATOR_NAMESPACE}:gpu-operator"
    run_kubectl(fleet, "create", "clusterrole", "approves", *approve)
    run_kubectl(fleet, "create", "clusterrolebinding", "approves", "--clusterrole=approves", account)
    wanted = f"KGPU_OPERATIONS_CONFIG={json.dumps({'remediation': remediation})}"
    try:
        run_kubectl(fleet, "set", "env", "deployment/gpu-operator", wanted, *place)
        yield
    finally:
        run_kubectl(fleet, "set", "env", "deployment/gpu-operator", "KGPU_OPERATIONS_CONFIG-", *place)
        run_kubectl(fleet, "delete", "clusterrolebinding,clusterrole", "approves")
        run_kubectl(fleet, "delete", "nodeoperations", "--all")


def test_a_machine_that_reboots_do_not_help_is_held_with_its_evidence(fleet: EmbeddedLab, tmp_path: Path) -> None:
    """An Xid 79 that has come back after a reboot, where the admin lets kgpu go as far as replacement: the node is emptied,
    labelled and held; the doctor reads what was kept of it; a person gives it back, and nothing stays.
    """
    settled(fleet)
    place, node = ("--namespace", GPU_OPERATOR_NAMESPACE), "l4-1"

    def made(kind: str, phase: str) -> list[Object]:
        rows = get(fleet, "nodeoperations")["items"]
        return [obj for obj in rows if obj["spec"]["type"] == kind and (obj.get("status") or {}).get("phase") == phase]

    def kgpu(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kgpu", *words], capture_output=True, text=True, check=False, timeout=120
        )  # fmt: skip

    run_kubectl(fleet, "scale", "deployment/gpu-operator", "--replicas=0", *place)
    until(fleet, lambda: not get(fleet, "pods", "-l", "app=gpu-operator", *place)["items"], "the operator to end")
    _rebooted_an_hour_ago(fleet, node)
    run_kubectl(fleet, "scale", "deployment/gpu-operator", "--replicas=1", *place)
    with repairs(fleet, policy="Replace", attempts=1):
        operate.inject(fleet.nodes / node / "hw", "xid", gpu=0, xid=79)
        until(fleet, lambda: bool(made("Replace", "Acting")), "the node to be held for replacement")
        (held,) = made("Replace", "Acting")

        def is_marked() -> bool:
            labels = get(fleet, "node", node)["metadata"]["labels"]
            return bool(labels.get(names.NEEDS_REPLACEMENT_LABEL) == "true")

        until(fleet, is_marked, "the node's label")  # written after the record
        assert get(fleet, "node", node)["spec"]["unschedulable"] is True
        bundle, name = tmp_path / "bundle.tar.gz", held["metadata"]["name"]
        config_map = held["status"]["evidence"]["name"]
        fetched = kgpu("operations", "bundle", name, "-o", str(bundle), "--kubeconfig", str(fleet.kubeconfig))
        assert fetched.returncode == 0, fetched.stderr
        read = kgpu("doctor", "--from", str(bundle))
        assert read.returncode == 1, read.stdout + read.stderr
        assert "Xid 79" in read.stdout
        print(f"made to held: {held['metadata']['creationTimestamp']} to {held['status']['phaseSince']}")
        print(f"bundle: {bundle.stat().st_size} bytes\n{read.stdout}")
        live = kgpu("doctor", "node", node, "--kubeconfig", str(fleet.kubeconfig))
        assert f"kgpu operations bundle {name}" in live.stdout
        assert kgpu("operations", "resume", name, "--kubeconfig", str(fleet.kubeconfig)).returncode == 0
        until(fleet, lambda: bool(made("Replace", "Complete")), "the node to be given back")
        after = get(fleet, "node", node)
        assert names.NEEDS_REPLACEMENT_LABEL not in after["metadata"]["labels"]
        assert "unschedulable" not in after["spec"]
        run_kubectl(fleet, "delete", "nodeoperations", "--all")

        def bundles() -> list[str]:
            return [obj["metadata"]["name"] for obj in get(fleet, "configmaps", *place)["items"]]

        until(fleet, lambda: config_map not in bundles(), "the evidence to go with its operation")
        # Without the records it is the first time that the GPU is lost.
        until(fleet, lambda: bool(made("Reboot", "Complete")), "the node to be rebooted by itself")
        settled(fleet)


def _rebooted_an_hour_ago(fleet: EmbeddedLab, node: str) -> None:
    """Put a reboot on record that a verdict called for. kgpu takes none for new that is over."""
    uid = get(fleet, "node", node)["metadata"]["uid"]
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
    spec = {"nodeName": node, "nodeUID": uid, "type": "Reboot", "requestedBy": names.REMEDIATION_REQUESTER}
    metadata = {"name": "reboot-of-an-hour-ago"}
    status = {
        "phase": "Complete", "result": "Succeeded", "reason": "Rebooted", "message": "the node has rebooted",
        "nodeUID": uid, "startedAt": ended, "phaseSince": ended, "completedAt": ended,
        "act": {"id": f"{uid}-1", "bootID": "a-former-boot"},
    }  # fmt: skip
    made = {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "metadata": metadata, "spec": spec}
    run_kubectl(fleet, "create", "-f", "-", stdin=json.dumps(made))
    change = json.dumps({"status": status})
    words = ("--subresource=status", "--type=merge", "-p", change)
    run_kubectl(fleet, "patch", "nodeoperation", metadata["name"], *words)


def test_what_an_agent_may_is_what_the_chart_grants(fleet: EmbeddedLab) -> None:
    settled(fleet)
    account = f"--as=system:serviceaccount:{GPU_OPERATOR_NAMESPACE}:{AGENT_DAEMON_SET}"
    said = [
        fleet.kubectl_run("auth", "can-i", verb, what, account).stdout.strip()
        for verb, what in (("patch", "nodes"), ("delete", "nodes"))
    ]
    assert said == ["yes", "no"]


def test_without_the_policy_nothing_of_it_stays_on_the_nodes(fleet: EmbeddedLab) -> None:
    settled(fleet)
    run_kubectl(fleet, "delete", *POLICY, "--timeout=60s")

    def bare() -> bool:
        return not offered(fleet) and not any(own_labels(node) for node in get(fleet, "nodes")["items"])

    until(fleet, bare, "no GPUs and no labels")
    until(fleet, lambda: not [*fleet.nodes.glob("*/cdi/*.json")], "no CDI specs")
    operator.install(fleet.kubeconfig)
    settled(fleet)


def test_a_lab_without_the_operator_does_not_get_it_later(embedded: EmbeddedLab) -> None:
    other = EmbeddedLab(embedded.name, embedded.folder, QuietProgress(), operator=True)
    with pytest.raises(LabError, match="without the operator"):
        other.up()
    assert not has_operator(embedded.nodes)


def test_a_lab_without_usage_does_not_get_it_later(fleet: EmbeddedLab) -> None:
    other = EmbeddedLab("operated", fleet.folder, QuietProgress(), usage=True)
    with pytest.raises(LabError, match="without usage recorded"):
        other.up()


def test_a_lab_with_usage_has_the_operator_and_comes_up_again_with_both(tmp_path: Path) -> None:
    lab = EmbeddedLab("used", tmp_path / "used", QuietProgress(), first=FirstNode(profile="l4"), usage=True)
    assert lab.about.up_words == ("--profile", "l4", "--usage")
    model.save(lab.folder, EmbeddedState(name="used", port=1, profile="l4", usage=True))
    assert "--usage" in EmbeddedLab("used", lab.folder, QuietProgress()).about.up_words


def test_usage_adds_to_the_operators_objects_and_changes_it() -> None:
    plain, used = operator.objects(), operator.objects(usage=True)
    kinds = Counter(obj["kind"] for obj in used) - Counter(obj["kind"] for obj in plain)
    assert kinds["Deployment"] == kinds["Namespace"] == 1
    assert used[0]["metadata"]["name"] == "research"
    env = {
        obj["metadata"]["name"]: {one["name"]: one.get("value") for one in _containers(obj)[0]["env"]}
        for obj in used
        if obj["kind"] == "Deployment"
    }
    assert env["gpu-operator"][names.ENV_USAGE] == "true"
    assert env["kgpu-usage"]["KGPU_RECLAIM"] == env["kgpu-usage"]["KGPU_USAGE_THROUGH_API_SERVER"] == "true"
    ids = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for obj in used]
    assert len(ids) == len(set(ids))


def _containers(obj: dict[str, Any]) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = obj["spec"]["template"]["spec"]["containers"]
    return containers


def test_up_again_keeps_what_somebody_has_changed(fleet: EmbeddedLab) -> None:
    settled(fleet)
    run_kubectl(fleet, "annotate", *POLICY, "example.com/mine=yes", "--overwrite")
    EmbeddedLab("operated", fleet.folder, QuietProgress()).up()
    assert get(fleet, *POLICY)["metadata"]["annotations"]["example.com/mine"] == "yes"
    assert "--operator" in fleet.about.up_words


def test_the_objects_are_what_the_chart_makes() -> None:
    try:
        build.ensure_helm(QuietProgress())
    except LabError as error:
        pytest.skip(f"no Helm here: {error.one_line()}")
    tool = Path(__file__).parents[2] / "tools" / "lab_operator.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_nodes_of_every_vendor_are_served() -> None:
    deployment = next(one for one in operator.objects() if one["kind"] == "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert set(next(one["value"] for one in env if one["name"] == "KGPU_VENDORS").split(",")) == set(vendors())


def test_every_object_is_of_a_kind_that_is_served_or_defined() -> None:
    defined = {one["spec"]["names"]["kind"] for one in crds()}
    made = {one["kind"] for one in operator.objects()}
    assert {"Deployment", "ServiceAccount", "ClusterRole"} < made
    assert made & defined == {"ClusterPolicy"}
