"""Driver DaemonSets over time: names that stay, digests that change only with the driver, files that have to exist."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kgpu.operator.model import Object, ObservedCluster
from kgpu.operator.objects.driver import orphans
from kgpu.operator.objects.driver_pod import PROBE_SCRIPT
from tests.operator.objects.scenes import CRD_NODES, DRIVER_FULL, IMAGES, SETTINGS, UBUNTU, Case, driver, node, policy

BASE = "nvidia-driver-daemonset"
U22, U24 = node("u22"), node("u24", version="24.04")
RHEL = node("r", "rhel", "9.4", kernel="5.14.0-427.el9.x86_64")


def sets(case: Case) -> dict[str, Object]:
    found = case.rendered()
    assert not found.errors, {key: str(error) for key, error in found.errors.items()}
    return {
        one["metadata"]["name"]: one
        for one in found.objects
        if one["kind"] == "DaemonSet" and one["metadata"]["name"] not in {"kgpu-agent", "kgpu-node-features"}
    }


def after(nodes: tuple[object, ...], live: Mapping[str, Object], spec: str = "{}") -> dict[str, Object]:
    observed = ObservedCluster(nodes=nodes, daemon_sets=live)  # type: ignore[arg-type]
    return sets(Case(policy=policy(spec), observed=observed))


def systems(found: Mapping[str, Object]) -> dict[str, str]:
    return {name: one["metadata"]["labels"]["nvidia.com/node.os-version"] for name, one in found.items()}


def env(one: Object, container: int = 0, *, init: bool = False) -> dict[str, str]:
    pod = one["spec"]["template"]["spec"]
    return {
        row["name"]: row.get("value", "") for row in pod["initContainers" if init else "containers"][container]["env"]
    }


def test_one_system_has_the_plain_name_and_keeps_it_when_others_come_and_go() -> None:
    first = after((U22,), {})
    assert systems(first) == {BASE: "ubuntu22.04"}
    second = after((U22, U24, RHEL), first)
    assert systems(second) == {
        BASE: "ubuntu22.04", f"{BASE}-ubuntu24.04": "ubuntu24.04", f"{BASE}-rhel9": "rhel9",
    }  # fmt: skip
    assert second[BASE] == first[BASE]
    third = after((U24,), second)
    assert systems(third) == {f"{BASE}-ubuntu24.04": "ubuntu24.04"}


def test_two_systems_at_once_have_names_of_their_own() -> None:
    assert set(after((U22, U24), {})) == {f"{BASE}-ubuntu22.04", f"{BASE}-ubuntu24.04"}


def test_a_live_daemonset_of_the_replaced_operator_keeps_its_name() -> None:
    live: Object = {
        "metadata": {"name": BASE},
        "spec": {"template": {"spec": {"containers": [{"image": "nvcr.io/nvidia/driver:550.1-ubuntu24.04"}]}}},
    }
    assert systems(after((U22, U24), {BASE: live})) == {f"{BASE}-ubuntu22.04": "ubuntu22.04", BASE: "ubuntu24.04"}


def test_a_live_object_of_any_shape_is_survived() -> None:
    for live in ({}, {"spec": None}, {"spec": {"template": []}}, {"spec": {"template": {"spec": {"containers": {}}}}}):
        assert len(after((U22,), {BASE: live})) == 1


def test_every_system_has_its_own_image_and_only_its_nodes() -> None:
    for one in after((U22, U24, RHEL), {}).values():
        tag = one["metadata"]["labels"]["nvidia.com/node.os-version"]
        spec = one["spec"]["template"]["spec"]
        assert spec["containers"][0]["image"].endswith(f"-{tag}")
        matching = [
            each.name for each in (U22, U24, RHEL)
            if all(dict(each.labels, **{"nvidia.com/gpu.deploy.driver": "true"}).get(key) == value
                   for key, value in spec["nodeSelector"].items())
        ]  # fmt: skip
        assert len(matching) == 1


def test_nothing_is_rendered_where_every_node_has_a_driver_of_its_own() -> None:
    mine = node("mine", labels={"nvidia.com/gpu.deploy.driver": "pre-installed"})
    bare = dataclasses.replace(SETTINGS, images={})
    found = Case(settings=bare, observed=ObservedCluster(nodes=(mine,))).rendered()
    assert not found.errors
    assert not [
        one for one in found.objects if one["metadata"]["labels"]["nvidia.com/gpu-operator.state"] == "state-driver"
    ]


@pytest.mark.parametrize("spec", ["driver: {enabled: false}", "driver: {useNvidiaDriverCRD: true}"])
def test_the_policy_s_driver_is_off(spec: str) -> None:
    assert after((U22,), {}, spec) == {}


def test_a_digest_changes_with_the_driver_and_with_nothing_else() -> None:
    def digest(spec: str, **settings: object) -> str:
        changed = dataclasses.replace(SETTINGS, **settings)
        (found,) = sets(Case(policy=policy(spec), observed=UBUNTU, settings=changed)).values()
        assert env(found)["DRIVER_CONFIG_DIGEST"] == env(found, init=True)["DRIVER_CONFIG_DIGEST"]
        return env(found)["DRIVER_CONFIG_DIGEST"]

    plain = digest("{}")
    same = ["driver: {rdma: {enabled: false}}", "driver: {kernelModuleType: auto}", "daemonsets: {labels: {a: b}}",
            "driver: {resources: {limits: {cpu: '1'}}}", "driver: {startupProbe: {periodSeconds: 3}}"]  # fmt: skip
    other = ["driver: {kernelModuleType: open}", "driver: {env: [{name: A, value: '1'}]}", "driver: {args: [x]}",
             "driver: {rdma: {enabled: true}}", "gds: {enabled: true}", "driver: {secretEnv: s}",
             "driver: {repository: a.io, image: driver, version: '1'}", "hostPaths: {rootFS: /other}"]  # fmt: skip
    assert {digest(spec) for spec in same} == {plain}
    assert plain not in {digest(spec) for spec in other}
    assert len({digest(spec) for spec in other}) == len(other)
    # A new operator brings a new driver manager: no reason to install a driver anew.
    assert digest("{}", images={**IMAGES, "DRIVER_MANAGER_IMAGE": "example.org/manager:2"}) == plain


def test_another_driver_manager_replaces_no_pod_unless_it_is_named() -> None:
    newer = dataclasses.replace(SETTINGS, images={**IMAGES, "DRIVER_MANAGER_IMAGE": "example.org/manager:2"})
    observed = ObservedCluster(nodes=(U22,))
    before, after_update = sets(Case(observed=observed)), sets(Case(settings=newer, observed=observed))
    assert manager(after_update)["image"] == "example.org/manager:2"
    assert digest_in(before) == digest_in(after_update)
    named = policy("driver: {manager: {repository: example.org, image: manager, version: '2'}}")
    assert digest_in(sets(Case(policy=named, observed=observed))) != digest_in(before)


def test_kgpus_own_program_makes_room_for_a_driver_unless_another_image_is_named() -> None:
    own = dataclasses.replace(SETTINGS, images={key: IMAGES[key] for key in IMAGES if key != "DRIVER_MANAGER_IMAGE"})
    observed = ObservedCluster(nodes=(U22,))
    found = sets(Case(settings=own, observed=observed))
    assert (manager(found)["image"], manager(found)["command"], manager(found)["args"]) == (
        own.image, ["kgpu", "driver-manager"], ["uninstall_driver"],
    )  # fmt: skip
    theirs = sets(Case(observed=observed))
    assert (manager(theirs)["command"], manager(theirs)["env"]) == (["driver-manager"], manager(found)["env"])
    named = policy("driver: {manager: {repository: example.org, image: kgpu, version: '2'}}")
    assert manager(sets(Case(policy=named, observed=observed)))["command"] == ["kgpu", "driver-manager"]
    assert digest_in(found) == digest_in(theirs)


def manager(found: Mapping[str, Object]) -> Object:
    made: Object = found[BASE]["spec"]["template"]["spec"]["initContainers"][0]
    return made


def digest_in(found: Mapping[str, Object]) -> str:
    return env(found[BASE], init=True)["DRIVER_CONFIG_DIGEST"]


def test_a_daemonset_whose_nodes_have_lost_their_labels_is_kept_while_it_has_pods() -> None:
    live = after((U22,), {})
    live[BASE]["status"] = {"desiredNumberScheduled": 1}
    assert "state-driver" in Case(observed=ObservedCluster(daemon_sets=live)).rendered().keep
    live[BASE]["status"] = {"desiredNumberScheduled": 0}
    assert not Case(observed=ObservedCluster(daemon_sets=live)).rendered().keep
    live[BASE]["status"] = {"desiredNumberScheduled": 1}
    off = policy("driver: {enabled: false}")
    assert not Case(policy=off, observed=ObservedCluster(daemon_sets=live)).rendered().keep


PRECOMPILED = "driver: {usePrecompiled: true, version: '570'}"


@pytest.mark.parametrize(
    ("before", "now", "spec", "goes"),
    [
        ("{}", (U22,), PRECOMPILED, True),
        (PRECOMPILED, (U22,), "{}", True),
        # A kernel or a system that is not there for a moment, or for good, takes nobody's driver away.
        (PRECOMPILED, (RHEL,), PRECOMPILED, False),
        ("{}", (RHEL,), "{}", False),
        ("{}", (), PRECOMPILED, False),
        ("{}", (U22,), "driver: {enabled: false, usePrecompiled: true}", False),
    ],
)
def test_a_daemonset_goes_without_its_pods_where_the_other_kind_of_driver_takes_its_place(
    before: str, now: tuple[object, ...], spec: str, *, goes: bool
) -> None:
    live, asked = after((U22,), {}, before), policy(spec)
    wanted = sets(Case(policy=asked, observed=ObservedCluster(nodes=now, daemon_sets=live)))  # type: ignore[arg-type]
    former = frozenset(live) if goes else frozenset()
    assert orphans(asked, live, wanted) == former


@pytest.mark.parametrize(
    ("maps", "what"),
    [({}, '"repos" does not exist'), ({"repos": frozenset()}, '"repos" is empty'),
     ({"repos": {"a"}, "certs": {"b"}}, '"topology" does not exist'),
     ({"repos": {"a"}, "certs": {"b"}, "topology": {"other"}}, 'no key "nvidia-topologyd.conf"')],
)  # fmt: skip
def test_a_config_map_that_is_not_there_is_said_and_takes_nothing_away(
    maps: dict[str, frozenset[str]], what: str
) -> None:
    found = Case(policy=policy(DRIVER_FULL), observed=dataclasses.replace(UBUNTU, config_maps=maps)).rendered()
    assert what in found.errors["driver"].what
    assert found.keep == {"state-driver"}
    assert "kgpu-agent" in {one["metadata"]["name"] for one in found.objects}


def test_repositories_of_an_unknown_system_are_an_error() -> None:
    arch = ObservedCluster(nodes=(node("a", "arch", "rolling"),), config_maps={"repos": frozenset({"x"})})
    found = Case(policy=policy("driver: {repoConfig: {configMapName: repos}}"), observed=arch).rendered()
    assert '"arch"' in found.errors["driver"].what


@pytest.mark.parametrize(
    ("os_id", "runtime", "mounts"),
    [("rhel", "containerd", 3), ("rhel", "cri-o", 0), ("sles", "containerd", 2), ("ubuntu", "containerd", 0)],
)
def test_subscriptions_of_the_host(os_id: str, runtime: str, mounts: int) -> None:
    (found,) = after((node("a", os_id, "9.4", runtime=runtime),), {}).values()
    paths = [volume.get("hostPath", {}).get("path", "") for volume in found["spec"]["template"]["spec"]["volumes"]]
    assert (
        sum("rhsm" in one or "entitlement" in one or "redhat" in one or "zypp" in one or "SUSE" in one for one in paths)
        == mounts
    )


def test_one_driver_object_with_an_error_leaves_the_other() -> None:
    broken = driver("b", "{image: 'malformed?', nodeSelector: {pool: b}}", uid="u-b")
    nodes = (*CRD_NODES.nodes, node("n9", labels={"nvidia.com/gpu-operator.driver.owner": "b"}))
    observed = dataclasses.replace(CRD_NODES, nodes=nodes, drivers=(*CRD_NODES.drivers, broken))
    found = Case(policy=policy("driver: {useNvidiaDriverCRD: true}"), observed=observed).rendered()
    assert set(found.errors) == {"NVIDIADriver/b"}
    assert {one["spec"]["template"]["spec"]["nodeSelector"].get("nvidia.com/gpu-operator.driver.owner")
            for one in found.objects if one["kind"] == "DaemonSet"} == {None, "a100", "pre"}  # fmt: skip


def test_driver_objects_have_the_replaced_operator_s_names() -> None:
    case = Case(policy=policy("driver: {useNvidiaDriverCRD: true}"), observed=CRD_NODES)
    assert "nvidia-gpu-driver-ubuntu22.04-7c6d7bd86b" in sets(case)


@pytest.mark.parametrize("spec", ["{usePrecompiled: true, gds: {enabled: true}, image: 'a/driver:1'}",
                                  "{driverType: vgpu-host-manager, image: 'a/driver:1'}"])  # fmt: skip
def test_what_can_t_be_is_refused_in_three_parts(spec: str) -> None:
    observed = dataclasses.replace(UBUNTU, drivers=(driver("x", spec),))
    found = Case(policy=policy("driver: {useNvidiaDriverCRD: true}"), observed=observed).rendered()
    error = found.errors["NVIDIADriver/x"]
    assert all((error.what, error.expected, error.remedy))


def test_the_probe_script_writes_what_the_validator_reads(tmp_path: Path) -> None:
    (tmp_path / "module").touch()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    text = PROBE_SCRIPT.replace("/sys/module/nvidia/refcnt", str(tmp_path / "module"))
    text = text.replace("/run/nvidia/validations", str(tmp_path / "validations"))
    last_words = tmp_path / "termination-log"
    text = text.replace("/dev/termination-log", str(last_words))
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    def run(**told: str) -> tuple[int, str]:
        ended = subprocess.run(["sh", "-c", text], env={**path, **told}, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout

    ready = tmp_path / "validations" / ".driver-ctr-ready"
    assert run(GDS_ENABLED="true")[0] == 0
    assert ready.read_text() == "GDRCOPY_ENABLED: false\nGDS_ENABLED: true\nGPU_DIRECT_RDMA_ENABLED: false\n"
    ready.unlink()
    (tmp_path / "validations" / ".driver-daemons-status").write_text("Starting\n")
    code, said = run()
    assert code == 1
    assert "not ready: Starting" in said
    assert last_words.read_text() == "the driver's daemons are not ready: Starting"
    assert not ready.exists()
    (tmp_path / "validations" / ".driver-daemons-status").write_text("Ready\n")
    assert run()[0] == 0
    assert last_words.read_text() == "", "it does not stand for why the container ends later"
    (tmp_path / "module").unlink()
    last_words.unlink()
    assert run()[0] == 1
    assert not last_words.exists(), "a driver that is being installed has its own words"
