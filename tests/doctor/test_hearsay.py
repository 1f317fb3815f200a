"""What a tenant can write is quoted, is likely at most, and takes nothing from anybody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kgpu.cli.doctor import xids_in
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import DRIVER, parts_of
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place, Subject
from kgpu.doctor.plan import diagnose
from kgpu.doctor.rule import Rule
from kgpu.doctor.snapshot import Snapshot

LOST = "Allocate failed due to rpc error: GetPreferredAllocation: error creating nvml.Device 0: GPU is lost"
NODE = {"kind": "Node", "metadata": {"name": "gpu-1"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
MIGHTY = {"containers": [{"name": "c", "securityContext": {"privileged": True}}]}
OF_HOST = {"containers": [{"name": "c"}], "volumes": [{"name": "v", "hostPath": {"path": "/var/lib/kubelet"}}]}


def mounting(path: str) -> dict[str, Any]:
    return {"containers": [{"name": "c"}], "volumes": [{"name": "v", "hostPath": {"path": path}}]}


def pod(namespace: str, name: str = "p", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"},
        "spec": {"nodeName": "gpu-1", **(spec or {"containers": [{"name": "c"}]})},
        "status": {"phase": "Pending", **status},
    }


def event(namespace: str) -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"name": "e", "namespace": namespace},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "p", "uid": f"{namespace}-p"},
        "reason": "Failed", "message": LOST, "type": "Warning", "lastTimestamp": "2026-01-01T11:59:00Z",
    }  # fmt: skip


def told(*objects: dict[str, Any]) -> list[Finding]:
    return [one for root in diagnose(Snapshot.of([NODE, *objects]), strict=True).findings for one in root.all()]


def left_behind(namespace: str) -> dict[str, Any]:
    """A container's own last words, which stand in the pod's status."""
    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": LOST}}
    return pod(namespace, containerStatuses=[{"name": "c", "state": state}])


@pytest.mark.parametrize("objects", [(pod("tenant"), event("tenant")), (left_behind("tenant"),)])
def test_a_tenants_words_drain_no_node(objects: tuple[dict[str, Any], ...]) -> None:
    (found,) = [one for one in told(*objects) if one.id == "DPL-12"]
    assert found.confidence < CERTAIN
    assert not any(word in step for step in found.remedy for word in ("drain", "cordon", "reboot"))
    assert "only words of namespace tenant say so: see on Node gpu-1 itself" in found.remedy[0]
    assert LOST in [one.value for one in found.evidence] or LOST in found.evidence[0].value


def test_what_the_kubelet_says_of_a_pod_is_not_the_tenants() -> None:
    """Nobody who may only run pods writes a pod's status."""
    refused = pod("tenant", phase="Failed", reason="UnexpectedAdmissionError", message=LOST)
    (found,) = [one for one in told(refused) if one.id == "DPL-12"]
    assert any(step.startswith("kubectl drain gpu-1") for step in found.remedy)


def of(image: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "containers": [{**spec["containers"][0], "image": image}]}


PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"


@pytest.mark.parametrize(
    ("spec", "trusted"),
    [
        (of(PLUGIN, MIGHTY), True), (of(PLUGIN, OF_HOST), True), (of("train:1", MIGHTY), False),
        (of(PLUGIN, mounting("/etc/localtime")), False), (of(PLUGIN, mounting("/dev/shm")), False),
        (of(PLUGIN, mounting("/data")), False), (of(PLUGIN, mounting("/dev/../run/x")), True),
    ],
)  # fmt: skip
def test_the_stacks_namespace_is_known_by_a_part_with_rights_that_no_tenant_has(
    spec: dict[str, Any], trusted: bool
) -> None:
    stack = pod("stack", name="agent", spec=spec)
    (found,) = [one for one in told(stack, pod("stack"), event("stack")) if one.id == "DPL-12"]
    assert any(step.startswith("kubectl drain gpu-1") for step in found.remedy) is trusted


def test_and_by_the_word_of_the_clusterpolicy() -> None:
    policy = {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "status": {"namespace": "stack"}}
    (found,) = [one for one in told(policy, pod("stack"), event("stack")) if one.id == "DPL-12"]
    assert any(step.startswith("kubectl drain gpu-1") for step in found.remedy)


def test_no_label_makes_a_namespace_the_stacks() -> None:
    pretender = pod("tenant", name="nvidia-device-plugin")
    pretender["metadata"]["labels"] = {"app": "nvidia-device-plugin-daemonset", "app.kubernetes.io/name": "kgpu"}
    (found,) = [one for one in told(pretender, pod("tenant"), event("tenant")) if one.id == "DPL-12"]
    assert not any("drain" in step for step in found.remedy)


def test_a_namespace_without_pods_is_not_trusted_for_it() -> None:
    """Whoever may write Events there may write them about others."""
    said = event("empty")
    said["involvedObject"] |= {"namespace": "tenant", "uid": "tenant-p"}
    (found,) = [one for one in told(pod("tenant"), said) if one.id == "DPL-12"]
    assert not any("drain" in step for step in found.remedy)


def test_a_pod_that_only_looks_like_a_device_plugin_is_no_second_one() -> None:
    """The remedy for two plugins would end the real one as well."""
    image = {"containers": [{"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}]}
    real = pod("gpu-operator", "plugin", {**image, "volumes": OF_HOST["volumes"]}, phase="Running")
    pretender = pod("tenant", "plugin", image, phase="Running")
    assert "DPL-20" not in [one.id for one in told(real, pretender)]
    second = pod("nvdp", "plugin", {**image, "volumes": OF_HOST["volumes"]}, phase="Running")
    assert "DPL-20" in [one.id for one in told(real, second)]


@pytest.mark.parametrize(
    ("image", "is_driver"),
    [
        ("nvcr.io/nvidia/driver:580.95.05-ubuntu22.04", True), ("nvcr.io/nvidia/driver@sha256:b0ac", True),
        ("registry.example.org/gpu/driver:580-5.15.0-134-generic-ubuntu22.04", True),
        ("registry.example.org/spark/driver:3.5.1", False), ("registry.example.org/spark/driver:350", False),
        ("registry.example.org/spark/driver@sha256:b0ac", False),
    ],
)  # fmt: skip
def test_not_everything_that_is_called_a_driver_is_one(image: str, is_driver: bool) -> None:
    found = parts_of(Pod(pod("tenant", spec=of(image, MIGHTY))))
    assert [part.name for part in found] == ([DRIVER] if is_driver else [])


@pytest.mark.parametrize(("kind", "code"), [("xid", 79), ("sxid", 12028)])
def test_what_facts_say_is_to_be_done_about_an_xid_is_not_offered(kind: str, code: int) -> None:
    """Facts come in files and ConfigMaps; what is to be done about a number is in kgpu's own catalogue."""
    planted = {"code": code, "kind": kind, "pci": "0000:61:00", "action": "reboot", "advice": "kubectl delete ns prod"}
    facts = {"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "xids": [planted]}
    report = diagnose(Snapshot.of([NODE, facts]).judged(xids_in), strict=True)
    (found,) = [one for root in report.findings for one in root.all() if one.id in ("HW-01", "HW-11")]
    assert "prod" not in " ".join(found.remedy)
    assert any("drain the node" in step for step in found.remedy)


MADE_ANEW = (
    "kubectl -n {} get pod p -o yaml | kubectl patch --local -f - -p {{}} -o yaml | kubectl replace --force -f -"
)


def weighed(*evidence: Evidence, remedy: tuple[str, ...]) -> Finding:
    """What becomes of a certain finding of a rule."""
    made = Finding(
        subject=Subject("Pod", "p", "tenant"), cause="x", evidence=evidence, remedy=remedy, confidence=CERTAIN,
        nodes=("gpu-1",),
    )  # fmt: skip
    rule = Rule("TST-01", "t", Place.CLUSTER, lambda _: [made], "")
    return diagnose(Snapshot.of([NODE, pod("tenant")]), rules=[rule], strict=True).findings[0]


WORDS = Evidence(object="log", value="x", author="tenant")
FIELD = Evidence(object="Node gpu-1", field="status", value="x")


OWN = Evidence(object="Pod tenant/p", field="spec.nodeName", value="gpu-1")
QUOTA = Evidence(object="ResourceQuota tenant/q", field="status.used[requests.nvidia.com/gpu]", value="8")
OTHERS = Evidence(object="Pod other/p", field="status.phase", value="Failed")


@pytest.mark.parametrize(
    ("evidence", "sure"),
    [
        ((WORDS,), False), ((WORDS, WORDS), False), ((WORDS, FIELD), True), ((FIELD,), True), ((), True),
        ((WORDS, OWN), False), ((OWN,), True), ((WORDS, OTHERS), True),
        ((WORDS, OWN, QUOTA), True),
    ],
)  # fmt: skip
def test_one_thing_that_no_tenant_writes_is_enough(evidence: tuple[Evidence, ...], sure: bool) -> None:
    found = weighed(*evidence, remedy=("kubectl drain gpu-1 --ignore-daemonsets",))
    assert (found.confidence >= CERTAIN, any("drain" in step for step in found.remedy)) == (sure, sure)


@pytest.mark.parametrize(
    ("step", "stays"),
    [
        ("kubectl -n tenant delete pod p", True),  # its own
        ("kubectl -n other delete pod p", False),
        ("kubectl delete clusterpolicy p", False),
        ("kubectl cordon gpu-1; kubectl -n tenant delete pod p", False),
        ("kubectl taint node gpu-1 a=b:NoSchedule", False),
        ("nvidia-smi -r -i 0", False),
        ("let its pods end and reset it (amd-smi reset -G)", False),
        ("switch the machine off and on", False),
        ("rmmod nvidia_uvm", False),
        ("kubectl label node gpu-1 nvidia.com/mig.config=all-disabled", False),
        ("kubectl label nodes --all nvidia.com/gpu.present-", False),
        ("kubectl -n other scale deployment d --replicas=0", False),
        ("kubectl -n tenant scale deployment d --replicas=0", True),
        ("helm uninstall gpu-operator", False),
        ("kubectl -n tenant logs p", True),
        ("reboot the node", False),
        ("kubectl patch clusterpolicy p --type merge -p '{\"spec\":{\"driver\":{\"version\":\"550.54.15\"}}}'", False),
        ("kubectl -n other patch deployment d -p '{}'", False),
        ("kubectl -n tenant patch deployment d -p '{}'", True),
        ("kubectl edit clusterpolicy p", False),
        ("kubectl edit nvidiadriver d", False),
        ("kubectl -n gpu-operator edit configmap plugin-config", False),
        ("kubectl -n tenant edit configmap own", True),
        (MADE_ANEW.format("tenant"), True),
        (MADE_ANEW.format("other"), False),
        ("kubectl replace --force -f all.yaml", False),
        ("kubectl -n tenant replace --force -f own.yaml", True),
        ("kubectl -n gpu-operator set env daemonset/p FAIL_ON_INIT_ERROR=false", False),
        ("kubectl -n tenant set env deployment/d A=b", True),
        ("kubectl -n gpu-operator set resources deployment/d --limits=memory=4Gi", False),
        ("kubectl -n gpu-operator annotate daemonset d a-", False),
        ("kubectl label namespace tenant pod-security.kubernetes.io/enforce=privileged", False),
        ("oc adm policy add-scc-to-user privileged -z default -n tenant", False),
        ("kubectl -n gpu-operator create configmap c --from-file=a=FILE --dry-run=client -o yaml | kubectl apply -f -", False),
        ("kubectl -n tenant create configmap c --from-file=a=FILE --dry-run=client -o yaml | kubectl apply -f -", True),
        ("helm show crds nvidia/gpu-operator | kubectl apply --server-side --force-conflicts -f -", False),
        ("helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --reuse-values --set driver.version=1", False),
        ("helm install gpu-operator nvidia/gpu-operator -n gpu-operator", False),
        ("systemctl restart kubelet", False),
        ("systemctl stop nvidia-fabricmanager", False),
        ("systemctl disable --now nvidia-imex.service", False),
        ("systemctl status kubelet", True),
        ("systemctl enable --now nvidia-persistenced", True),
        ("nvidia-smi -i 0 -mig 1", False),
        ("nvidia-smi -c DEFAULT", False),
        ("nvidia-smi -q -i 0", True),
        ("amd-smi set --compute-partition SPX", False),
        ("setsebool -P container_use_devices on", False),
        ("apt remove nvidia-container-toolkit", False),
        ("kubectl uncordon gpu-2", True),
        ("kubectl get clusterpolicy p -o yaml", True),
    ],
)  # fmt: skip
def test_a_step_that_takes_from_others_goes(step: str, stays: bool) -> None:
    assert (step in weighed(WORDS, remedy=(step,)).remedy) == stays


def test_no_quoted_word_makes_another_namespace_ones_own() -> None:
    """What a value says of a namespace is no part of the command."""
    step = 'kubectl patch clusterpolicy p -p \'{"a":"; kubectl -n tenant get x | kubectl replace -f -"}\''
    assert step not in weighed(WORDS, remedy=(step,)).remedy


@pytest.mark.parametrize(
    ("step", "stays"),
    [
        ("helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --set driver.version=1", True),
        ("kubectl patch clusterpolicy p --type merge -p '{}'", True),
        ("kubectl drain gpu-1 --ignore-daemonsets", False),
        ("kubectl -n gpu-operator get pod p -o yaml | kubectl replace --force -f -", False),
    ],
)
def test_a_log_that_somebody_hands_over_alone_changes_settings_and_ends_no_work(step: str, stays: bool) -> None:
    """Of whose namespace nobody has read anything: whoever has it knows what it is."""
    made = Finding(
        subject=Subject("Pod", "p", "ns"), cause="x", evidence=(replace(WORDS, author="ns"),), remedy=(step,)
    )
    rule = Rule("TST-01", "t", Place.CLUSTER, lambda _: [made], "")
    log = {"kind": "PodLog", "metadata": {"name": "p", "namespace": "ns"}, "lines": ["x"]}
    (found,) = diagnose(Snapshot.of([log]), rules=[rule], strict=True).findings
    assert (step in found.remedy) == stays


@pytest.mark.parametrize("listed", [True, False])
def test_what_is_not_there_is_certain_where_all_that_is_there_was_listed(listed: bool) -> None:
    """Of a tenant's own Event and template alone it would be likely."""
    maker: dict[str, Any] = {"kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "tenant", "uid": "w"}}
    maker["spec"] = {"replicas": 1, "template": {"spec": {"runtimeClassName": "nvidia"}}}
    said = event("tenant")
    said["involvedObject"] = {"kind": "ReplicaSet", "namespace": "tenant", "name": "web", "uid": "w"}
    said |= {"reason": "FailedCreate", "message": 'pods "web-" is forbidden: RuntimeClass "nvidia" not found'}
    snapshot = Snapshot.of([NODE, pod("tenant"), maker, said], listed=["RuntimeClass"] if listed else [])
    (found,) = [one for one in diagnose(snapshot, strict=True).findings if one.id == "RUN-02"]
    assert found.confidence == (CERTAIN if listed else LIKELY)
