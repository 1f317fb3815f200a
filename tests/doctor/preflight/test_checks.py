"""Each check of a preflight: predicted to fail, fine, unknown; with the doctor's id, proof and remedy."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kgpu.base.advice import Advice
from kgpu.doctor.model import CERTAIN
from kgpu.doctor.plan import diagnose
from kgpu.doctor.preflight.model import DriverChoice, PreflightVerdict, RegistryAnswer
from kgpu.doctor.preflight.plan import CHECKS, CLUSTER_CHECKS
from kgpu.doctor.rules import by_id
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.example import all_examples
from tests.doctor.pasting import problems
from tests.doctor.preflight.scenes import (
    B200,
    IMAGE,
    KERNEL,
    NODE,
    SPACE,
    V100,
    choice,
    host,
    ids,
    node,
    report,
    verdict,
)

HEADERS, NOUVEAU, SECURE_BOOT = "kernel headers", "nouveau", "Secure Boot"
DRIVER_IMAGE, OWN_DRIVER, KNOWS = "driver image", "the node's own driver", "GPUs of the driver"
RUNTIME, DISK, OTHERS = "container runtime", "disk", "other device plugins"
ABSENT: Final = {IMAGE: RegistryAnswer(exists=False, why="nvcr.io has no such image")}
SILENT: Final = {IMAGE: RegistryAnswer(exists=None, why="nvcr.io can't be reached")}
PRECOMPILED: Final = choice(image=f"nvcr.io/nvidia/driver:580-{KERNEL}-ubuntu24.04", precompiled=True, version="580")
DEBIAN: Final = choice(image="nvcr.io/nvidia/driver:580.95.05-debian13", os_tag="debian13")
BOTTLEROCKET: Final = choice(image="nvcr.io/nvidia/driver:580.95.05-bottlerocket1.40", os_tag="bottlerocket1.40")
DIGEST: Final = f"nvcr.io/nvidia/driver@sha256:{'0' * 64}"
THERE: Final = RegistryAnswer(exists=True)
NOUVEAU_BOUND: Final = [
    {"address": "0000:01:00.0", "vendor": "10de", "device": "2330", "pciClass": "030200", "driver": "nouveau"}
]
PLUGIN: Final = {
    "kind": "Pod",
    "metadata": {"name": "plugin-x", "namespace": "kube-system", "ownerReferences": [
        {"kind": "DaemonSet", "name": "nvidia-device-plugin", "controller": True}]},
    "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}]},
    "status": {"phase": "Running"},
}  # fmt: skip

FAILS: Final[list[tuple[str, str, dict[str, Any], DriverChoice | None, dict[str, Any]]]] = [
    (HEADERS, "KRN-01", host(headers=False, headersOffered=False), None, {}),
    (HEADERS, "KRN-01", host(headers=False, kernel="6.6.87-microsoft-standard-WSL2"), None, {}),
    (HEADERS, "KRN-01", host(headers=False, kernel="6.12.0-rc3"), None, {}),
    (HEADERS, "KRN-01", host(headers=False, kernel="6.8.1+"), None, {}),
    (NOUVEAU, "KRN-03", host(modules={"nouveau": 3}), None, {}),
    (NOUVEAU, "KRN-03", host(modules=None, pci=NOUVEAU_BOUND), None, {}),
    (SECURE_BOOT, "KRN-04", host(secureBoot=True), None, {}),
    (DRIVER_IMAGE, "IMG-07", host(), None, {"images": ABSENT}),
    (DRIVER_IMAGE, "DRV-08", host(), DEBIAN, {"images": {}}),
    (DRIVER_IMAGE, "DRV-08", host(), BOTTLEROCKET, {"images": {}}),
    (DRIVER_IMAGE, "DRV-07", host(), PRECOMPILED, {"images": {PRECOMPILED.image: RegistryAnswer(exists=False)}}),
    (DRIVER_IMAGE, "OBJ-00", host(), choice(image="", problem=Advice(what="no version", remedy="give it")), {}),
    (KNOWS, "KRN-09", host(device=V100), choice(version="595.91.07"), {}),
    (KNOWS, "KRN-09", host(device=B200), choice(version="550.163.01"), {}),
    (KNOWS, "KRN-07", host(device=V100), choice(module_type="open"), {}),
    (KNOWS, "KRN-08", host(device=B200), choice(module_type="proprietary"), {}),
    (DISK, "IMG-02", host(disks={"/var/lib/kubelet": {"size": 100 << 30, "free": 12 << 30}}), None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("check", "rule", "facts", "driver", "more"), FAILS)
def test_what_will_fail_is_predicted_with_proof_and_remedy(
    check: str, rule: str, facts: dict[str, Any], driver: DriverChoice | None, more: dict[str, Any]
) -> None:
    found = report(node(), facts, driver=driver, **more)
    assert ids(found) == [rule], [one.what for one in found.predictions]
    assert verdict(found, check) is PreflightVerdict.FAILS
    (said,) = found.failures
    assert said.nodes == (NODE,)
    assert said.evidence
    assert said.steps
    assert rule in by_id()
    assert found.exit_code == 1


@pytest.mark.parametrize("row", FAILS)
def test_remedies_can_be_pasted(row: tuple[str, str, dict[str, Any], DriverChoice | None, dict[str, Any]]) -> None:
    (said,) = report(node(), row[2], driver=row[3], **row[4]).failures
    assert list(problems(said.steps)) == []


@pytest.mark.parametrize(
    ("facts", "driver", "more"),
    [
        (host(), None, {}),
        (host(headers=False, headersOffered=True), None, {}),
        (host(modules={"nouveau": 0}, pci=NOUVEAU_BOUND), None, {}),
        (host(secureBoot=True), PRECOMPILED, {"images": {PRECOMPILED.image: RegistryAnswer(exists=True)}}),
        (host(headers=False, headersOffered=False), PRECOMPILED, {"images": {PRECOMPILED.image: RegistryAnswer(exists=True)}}),
        (host(), DEBIAN, {"images": {DEBIAN.image: RegistryAnswer(exists=True)}}),
        (host(device=V100), choice(version="580.95.05"), {}),
        (host(device=B200), choice(module_type="open"), {}),
        (host(secureBoot=True, headers=False, modules={"nouveau": 2}), choice(enabled=False), {}),
        (host(secureBoot=True, headers=False, driverVersion="580.95.05", libraries=["/usr/lib64/libnvidia-ml.so.580.95.05"]), None, {}),
    ],
)  # fmt: skip
def test_what_is_fit_is_passed_over_in_silence(
    facts: dict[str, Any], driver: DriverChoice | None, more: dict[str, Any]
) -> None:
    found = report(node(), facts, driver=driver, **more)
    assert found.predictions == ()
    assert found.unknown == ()
    assert found.exit_code == 0
    assert set(found.verdicts[NODE].values()) == {PreflightVerdict.FINE}


@pytest.mark.parametrize(
    ("check", "objects", "driver", "more"),
    [
        (HEADERS, (node(),), None, {}),
        (HEADERS, (node(), host(headers=False)), None, {}),
        (NOUVEAU, (node(),), None, {}),
        (NOUVEAU, (node(), host(modules=None, pci=None, missing={"PCI devices": "denied"})), None, {}),
        (SECURE_BOOT, (node(),), None, {}),
        (SECURE_BOOT, (node(), host(secureBoot=None, missing={"Secure Boot's state": "Permission denied"})), None, {}),
        (SECURE_BOOT, (node(), host(secureBoot=True)), choice(precompiled=True, os_tag="rhel9"), {}),
        (DRIVER_IMAGE, (node(), host()), None, {"images": SILENT}),
        (DRIVER_IMAGE, (node(), host()), None, {"images": {}}),
        (DRIVER_IMAGE, (node(),), BOTTLEROCKET, {"images": {}}),
        (DRIVER_IMAGE, (node(), host()), choice(image=""), {}),
        (KNOWS, (node(),), None, {}),
        (KNOWS, (node(), host(device="ffff")), None, {}),
        (KNOWS, (node(), host()), choice(image=DIGEST, version=DIGEST.partition("@")[2]), {"images": {DIGEST: THERE}}),
        (DISK, (node(),), None, {}),
        (RUNTIME, (node(containerRuntimeVersion=""), host()), None, {}),
    ],
)
def test_what_nobody_has_looked_at_is_unknown_and_says_how_to_look(
    check: str, objects: tuple[dict[str, Any], ...], driver: DriverChoice | None, more: dict[str, Any]
) -> None:
    found = report(*objects, driver=driver, **more)
    assert ids(found) == []
    assert verdict(found, check) is PreflightVerdict.UNKNOWN
    (gap,) = [one for one in found.unknown if one.check == check]
    assert gap.nodes == (NODE,)
    assert gap.why
    assert gap.how


def test_a_full_disk_is_predicted_from_the_api_alone() -> None:
    full = node()
    full["status"]["conditions"] = [{"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure"}]
    assert ids(report(full)) == ["IMG-02"]


def test_another_device_plugin_is_predicted_by_its_pod_and_kgpus_own_is_not() -> None:
    found = report(node(), host(), PLUGIN)
    assert ids(found) == ["OPR-20"]
    assert "DaemonSet/nvidia-device-plugin in namespace kube-system" in found.failures[0].what
    own = {**PLUGIN, "metadata": {**PLUGIN["metadata"], "labels": {"app.kubernetes.io/part-of": "kgpu"}}}
    assert ids(report(node(), host(), own)) == []
    there = {**PLUGIN, "metadata": {**PLUGIN["metadata"], "namespace": SPACE}}
    assert ids(report(node(), host(), there)) == []


def test_a_driver_of_the_nodes_own_is_a_note_where_its_version_is_another() -> None:
    facts = host(driverVersion="550.54.15", libraries=["/usr/lib64/libnvidia-ml.so.550.54.15"])
    found = report(node(), facts)
    assert [(one.id, one.is_note) for one in found.predictions] == [("DRV-05", True)]
    assert found.exit_code == 0


def test_a_driver_container_that_runs_as_wanted_needs_nothing_any_more() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "d", "namespace": SPACE, "labels": {"app": "nvidia-driver-daemonset"}},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": IMAGE}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                   "containerStatuses": [{"name": "c", "ready": True, "state": {"running": {}}}]},
    }  # fmt: skip
    found = report(node(), host(secureBoot=True, headers=False, modules={"nvidia": 4}), pod, images={})
    assert found.predictions == ()


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_a_namespace_that_takes_no_privileged_pods_is_predicted(level: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level}
    found = report(node(), host(), {"kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}})
    assert ids(found) == ["OPR-02"]
    assert found.failures[0].nodes == ()
    assert found.failures[0].steps[-1].startswith(f"kubectl label namespace {SPACE}")


def test_so_is_one_whose_cluster_has_refused_the_probe() -> None:
    found = report(node(), host(), refused='violates PodSecurity "baseline:latest"')
    assert ids(found) == ["OPR-02"]
    assert "violates PodSecurity" in found.failures[0].evidence[-1]


def test_a_privileged_namespace_and_one_without_a_level_are_fine() -> None:
    for labels in ({"pod-security.kubernetes.io/enforce": "privileged"}, {}):
        assert ids(report(node(), host(), {"kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}})) == []


def test_one_digest_for_two_systems_is_predicted() -> None:
    image = f"nvcr.io/nvidia/driver@sha256:{'0' * 64}"
    driver = choice(image=image)
    assert ids(report(node(), host(), driver=driver, images={image: RegistryAnswer(exists=True)})) == []
    from dataclasses import replace

    from kgpu.doctor.preflight.plan import predict
    from tests.doctor.preflight.scenes import scene

    made = scene(node(), host(), node("gpu-2"), host("gpu-2"), images={image: RegistryAnswer(exists=True)})
    drivers = {NODE: driver, "gpu-2": choice(image=image, os_tag="rhel9")}
    found = predict(replace(made, intent=replace(made.intent, drivers=drivers)))
    assert ids(found) == ["DRV-29"]
    assert "rhel9 (gpu-2), ubuntu24.04 (gpu-1)" in found.failures[0].what


def test_nvidiadrivers_that_select_one_node_are_predicted_by_the_doctors_rule() -> None:
    pools = [
        {"kind": "NVIDIADriver", "metadata": {"name": name}, "spec": {"nodeSelector": {"pool": "a"}}}
        for name in ("one", "two")
    ]
    marked = node()
    marked["metadata"]["labels"]["pool"] = "a"
    assert ids(report(marked, host(), *pools)) == ["DRV-10"]
    assert ids(report(marked, host(), *pools, by_objects=False)) == [], "they are off"


def test_another_operator_is_a_note_and_hides_no_answer_about_nodes() -> None:
    operator = {
        "kind": "Deployment",
        "metadata": {"name": "gpu-operator", "namespace": SPACE},
        "spec": {"template": {"spec": {"containers": [{"image": "nvcr.io/nvidia/gpu-operator:v26.3.0"}]}}},
        "status": {"readyReplicas": 1},
    }
    found = report(node(), host(secureBoot=True), operator)
    assert ids(found) == ["KRN-04"]
    assert [one.id for one in found.predictions if one.is_note] == ["OPR-20"]
    own = {**operator, "metadata": {**operator["metadata"], "labels": {"app.kubernetes.io/name": "kgpu"}}}
    assert report(node(), host(), own).predictions == ()


def test_every_check_has_an_id_of_the_doctors() -> None:
    assert {row.id for row in CHECKS} | {row.id for row in CLUSTER_CHECKS} <= set(by_id())


@pytest.mark.parametrize("rule", sorted({row[1] for row in FAILS} - {"OBJ-00"}))
def test_the_doctor_finds_the_same_once_it_has_happened(rule: str) -> None:
    broken = next(one.broken for one in all_examples() if one.name == rule)
    assert diagnose(Snapshot.of(broken)).findings[0].id == rule


def test_a_remedy_changes_the_policy_that_is_there() -> None:
    policy = {"kind": "ClusterPolicy", "apiVersion": "nvidia.com/v1", "metadata": {"name": "mine"}, "spec": {}}
    (said,) = report(node(), host(device=V100), policy, driver=choice(module_type="open")).failures
    assert said.steps[0].startswith("kubectl patch clusterpolicy mine")
    assert said.sureness == "certain"
    assert CERTAIN


def side(**more: Any) -> dict[str, Any]:
    """The document of a ClusterPolicy with GPUDirect Storage and precompiled drivers, and other keys of the driver."""
    spec = {"driver": {"usePrecompiled": True, **more}, "gds": {"enabled": True}}
    return {"kind": "ClusterPolicy", "metadata": {"name": "mine"}, "spec": spec}


def test_gds_that_a_driver_does_not_go_with_is_predicted_of_what_is_to_be_installed() -> None:
    (said,) = report(node(), host(), policy=side(), by_objects=False).failures
    assert (said.id, said.check, said.nodes) == ("DRV-26", "GDS and GDRCopy", ())
    assert said.steps == ("give the chart --set driver.usePrecompiled=false",)
    (said,) = report(
        node(), host(), policy=side(usePrecompiled=False, kernelModuleType="proprietary"), by_objects=False
    ).failures
    assert said.steps == ("give the chart --set driver.kernelModuleType=open",)
    (said,) = report(node(), host(), side(), policy=side(), by_objects=False).failures
    assert "kubectl edit clusterpolicy mine" in said.steps
    assert ids(report(node(), host(), policy=side(usePrecompiled=False), by_objects=False)) == []


def test_of_nvidiadrivers_only_those_that_are_in_force_are_asked() -> None:
    spec = {"usePrecompiled": True, "gdrcopy": {"enabled": True}}
    pool = {"kind": "NVIDIADriver", "metadata": {"name": "one"}, "spec": spec}
    assert ids(report(node(), host(), pool)) == ["DRV-26"]
    assert ids(report(node(), host(), pool, by_objects=False)) == []
    assert ids(report(node(), host(), policy=side())) == [], "the policy's own driver is off then"
