"""Drivers on OpenShift: a pool per version of RHCOS, the toolkit they are built in, and what of the cluster reaches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from kgpu.formats import names
from kgpu.operator.model import ClusterNode, Object, ObservedCluster
from kgpu.operator.objects import openshift as parts
from kgpu.operator.objects import toolkit_state as states
from kgpu.operator.objects.pools import MAX_NAME, rhcos_name
from kgpu.operator.openshift import DriverToolkit, OpenShift
from tests.operator.objects.scenes import (
    CONFIG_MAPS,
    HOST_DRIVER,
    OPENSHIFT,
    OWNED,
    RHCOS,
    RHCOS_NEXT,
    TOOLKIT_IMAGE,
    Case,
    driver,
    node,
    openshift,
    policy,
    rhcos,
)
from tests.operator.objects.test_driver import sets

BASE = "nvidia-driver-daemonset"
OWN = f"{BASE}-{RHCOS}"


def rendered(
    *nodes: ClusterNode, spec: str = "{}", live: Mapping[str, Object] | None = None, cluster: OpenShift = OPENSHIFT
) -> dict[str, Object]:
    observed = openshift(*nodes, daemon_sets=live or {}, config_maps=CONFIG_MAPS, openshift=cluster)
    return sets(Case(policy=policy(spec), observed=observed))


def containers(one: Object) -> dict[str, Object]:
    return {each["name"]: each for each in one["spec"]["template"]["spec"]["containers"]}


def env(container: Object) -> dict[str, str]:
    return {row["name"]: row.get("value", "") for row in container["env"]}


def mounts(container: Object) -> dict[str, Object]:
    return {row["mountPath"]: row for row in container["volumeMounts"]}


def with_pods(one: Object) -> Object:
    return {**one, "status": {"desiredNumberScheduled": 1}}


def told(case: Case) -> list[str]:
    return [record.one_line() for record in case.rendered().advice if record.reason == states.UNAVAILABLE]


def test_a_pool_per_version_of_rhcos_with_its_own_toolkit() -> None:
    cluster = dataclasses.replace(OPENSHIFT, toolkit=DriverToolkit(images={RHCOS: TOOLKIT_IMAGE, RHCOS_NEXT: "next"}))
    found = rendered(rhcos("a"), rhcos("b"), rhcos("c", RHCOS_NEXT), cluster=cluster)
    assert set(found) == {OWN, f"{BASE}-{RHCOS_NEXT}"}
    for name, version, image in ((OWN, RHCOS, TOOLKIT_IMAGE), (f"{BASE}-{RHCOS_NEXT}", RHCOS_NEXT, "next")):
        one = found[name]
        assert one["spec"]["template"]["spec"]["nodeSelector"][names.NFD_OSTREE_VERSION] == version
        assert (one["metadata"]["labels"]["openshift.driver-toolkit"], one["metadata"]["labels"][parts.RHCOS_LABEL]) == (
            "true", version,
        )  # fmt: skip
        toolkit = containers(one)["openshift-driver-toolkit-ctr"]
        assert (toolkit["image"], env(toolkit)["RHCOS_VERSION"]) == (image, version)
        assert parts.MISSING_LABEL not in one["metadata"]["labels"]


def test_the_driver_s_container_works_with_the_toolkit_through_one_folder() -> None:
    (one,) = rendered(rhcos("a"), spec="gdrcopy: {enabled: true}\ngds: {enabled: true}").values()
    found = containers(one)
    main, copy, gds = found["nvidia-driver-ctr"], found["nvidia-gdrcopy-ctr"], found["nvidia-fs-ctr"]
    assert (main["command"], main["args"]) == (["ocp_dtk_entrypoint"], ["nv-ctr-run-with-dtk"])
    assert (copy["command"], copy["args"]) == (["ocp_dtk_entrypoint"], ["gdrcopy-ctr-run-with-dtk"])
    assert gds["command"] == ["bash", "-c"]
    toolkit = found["openshift-driver-toolkit-ctr"]
    for container in (main, copy, toolkit):
        assert mounts(container)["/mnt/shared-nvidia-driver-toolkit"]["name"] == "shared-nvidia-driver-toolkit"
    volumes = {volume["name"]: volume for volume in one["spec"]["template"]["spec"]["volumes"]}
    assert volumes["shared-nvidia-driver-toolkit"]["emptyDir"] == {}
    assert {mount["name"] for each in found.values() for mount in each["volumeMounts"]} <= set(volumes)
    assert env(toolkit)["GDRCOPY_ENABLED"] == "true"
    assert env(toolkit)[names.ENV_DRIVER_CONFIG_DIGEST] == env(main)[names.ENV_DRIVER_CONFIG_DIGEST]


def test_a_version_without_an_image_is_built_as_the_replaced_operator_does_and_is_told() -> None:
    (one,) = rendered(rhcos("a", RHCOS_NEXT)).values()
    found = containers(one)
    main, toolkit = found["nvidia-driver-ctr"], found["openshift-driver-toolkit-ctr"]
    assert toolkit["image"] == main["image"]
    assert env(toolkit)["RHCOS_IMAGE_MISSING"] == env(main)["RHCOS_IMAGE_MISSING"] == "true"
    assert env(main)["RHCOS_VERSION"] == RHCOS_NEXT
    for labels in (one["metadata"]["labels"], one["spec"]["template"]["metadata"]["labels"]):
        assert labels["openshift.driver-toolkit.rhcos-image-missing"] == "true"
    (line,) = told(Case(observed=openshift(rhcos("a", RHCOS_NEXT))))
    assert f"no image for RHCOS {RHCOS_NEXT} of a" in line


@pytest.mark.parametrize(
    ("cluster", "spec"),
    [
        (dataclasses.replace(OPENSHIFT, toolkit=None), "{}"),
        (OPENSHIFT, "operator: {use_ocp_driver_toolkit: false}"),
    ],
    ids=["no ImageStream", "switched off"],
)
def test_without_a_toolkit_the_driver_is_built_alone(cluster: OpenShift, spec: str) -> None:
    (one,) = rendered(rhcos("a"), cluster=cluster, spec=spec).values()
    found = containers(one)
    assert set(found) == {"nvidia-driver-ctr"}
    assert found["nvidia-driver-ctr"]["command"] == ["nvidia-driver"]
    assert not [label for label in one["metadata"]["labels"] if label.startswith("openshift.")]


def test_an_image_that_pods_have_stays_when_the_image_stream_goes_or_loses_it() -> None:
    """Else every driver would be installed anew, without the toolkit."""
    live = rendered(rhcos("a"))
    for cluster in (
        dataclasses.replace(OPENSHIFT, toolkit=None),
        dataclasses.replace(OPENSHIFT, toolkit=DriverToolkit()),
    ):
        assert rendered(rhcos("a"), live=live, cluster=cluster) == live
    fallback = rendered(rhcos("a", RHCOS_NEXT))
    gone = rendered(rhcos("a", RHCOS_NEXT), live=fallback, cluster=dataclasses.replace(OPENSHIFT, toolkit=None))
    assert set(containers(*gone.values())) == {"nvidia-driver-ctr"}


def test_what_the_digest_is_made_of() -> None:
    """A toolkit's image is a reason to install a driver anew; the proxy and the release of OpenShift are none."""

    def digest(cluster: OpenShift) -> str:
        (one,) = rendered(rhcos("a"), cluster=cluster).values()
        return env(containers(one)["nvidia-driver-ctr"])[names.ENV_DRIVER_CONFIG_DIGEST]

    usual = digest(OPENSHIFT)
    assert usual == digest(dataclasses.replace(OPENSHIFT, version="4.17", proxy={}, trusted_ca=False))
    others = {
        digest(dataclasses.replace(OPENSHIFT, toolkit=toolkit))
        for toolkit in (None, DriverToolkit(), DriverToolkit(images={RHCOS: "other"}))
    }
    assert len(others | {usual}) == 4


def test_the_cluster_s_proxy_reaches_the_driver_and_the_policy_s_own_wins() -> None:
    own = "driver: {env: [{name: HTTP_PROXY, value: mine}]}"
    (one,) = rendered(rhcos("a"), spec=own).values()
    found = env(containers(one)["nvidia-driver-ctr"])
    assert found["HTTP_PROXY"] == "mine"
    assert (found["http_proxy"], found["NO_PROXY"], found["OPENSHIFT_VERSION"]) == ("http://proxy:3128", ".svc", "4.16")


def test_trusted_certificates_are_a_folder_or_a_file_beside_the_policy_s_own() -> None:
    (plain,) = rendered(rhcos("a")).values()
    (beside,) = rendered(rhcos("a"), spec="driver: {certConfig: {name: certs}}").values()
    folder = "/etc/pki/ca-trust/extracted/pem"
    assert mounts(containers(plain)["nvidia-driver-ctr"])[folder]["readOnly"]
    found = mounts(containers(beside)["nvidia-driver-ctr"])
    assert folder not in found
    assert {f"{folder}/ca.crt", f"{folder}/tls-ca-bundle.pem"} <= set(found)
    maps = {**CONFIG_MAPS, "certs": frozenset({"tls-ca-bundle.pem"})}
    observed = openshift(rhcos("a"), config_maps=maps)
    (mine,) = sets(Case(policy=policy("driver: {certConfig: {name: certs}}"), observed=observed)).values()
    assert mounts(containers(mine)["nvidia-driver-ctr"])[f"{folder}/tls-ca-bundle.pem"]["name"] == "cert-config"


def test_openshift_alone_writes_what_is_in_the_map_of_certificates() -> None:
    found = [one for one in Case(observed=openshift(rhcos("a"))).rendered().objects if one["kind"] == "ConfigMap"]
    (one,) = [each for each in found if each["metadata"]["name"] == "gpu-operator-trusted-ca"]
    assert one["metadata"]["labels"]["config.openshift.io/inject-trusted-cabundle"] == "true"
    assert "data" not in one


def test_precompiled_drivers_have_pools_by_kernel_and_no_toolkit() -> None:
    spec = "driver: {usePrecompiled: true, repository: nvcr.io/nvidia, image: driver, version: '580'}"
    (one,) = rendered(rhcos("a"), rhcos("b", RHCOS_NEXT), spec=spec).values()
    assert set(containers(one)) == {"nvidia-driver-ctr"}
    assert env(containers(one)["nvidia-driver-ctr"])["HTTP_PROXY"] == "http://proxy:3128"


def test_rhcos_that_calls_itself_rhel_and_a_worker_with_rhel() -> None:
    new = node("a", "rhel", "9.6", runtime="cri-o", labels={names.NFD_OSTREE_VERSION: "9.6.20250826-1"})
    found = rendered(new, node("b", "rhel", "9.4"))
    assert set(found) == {f"{BASE}-9.6.20250826-1", BASE}


def test_a_node_that_does_not_tell_its_version_gets_no_driver_and_is_named() -> None:
    case = Case(observed=openshift(rhcos("a", "")))
    assert sets(case) == {}
    (line,) = told(case)
    assert "no driver is installed on a yet" in line
    assert names.NFD_OSTREE_VERSION in line


def test_the_plain_name_stays_with_its_pods_and_moves_on_with_the_next_version() -> None:
    """Of an operator that had one DaemonSet for all."""
    live = {BASE: with_pods(sets(Case(observed=ObservedCluster(nodes=(rhcos("a"),))))[BASE])}
    first = rendered(rhcos("a"), live=live)
    assert set(first) == {BASE}
    live = {BASE: with_pods(first[BASE])}
    assert set(rendered(rhcos("a"), rhcos("b", RHCOS_NEXT), live=live)) == {BASE, f"{BASE}-{RHCOS_NEXT}"}
    own = {f"{BASE}-{RHCOS_NEXT}": with_pods(rendered(rhcos("b", RHCOS_NEXT))[f"{BASE}-{RHCOS_NEXT}"])}
    assert set(rendered(rhcos("b", RHCOS_NEXT), live={**live, **own})) == set(own)


def test_names_from_labels_of_any_kind_are_names_and_stay_apart() -> None:
    versions = ("A_b", "a.b", "a_B", "x" * 63)
    found = {rhcos_name(version) for version in versions}
    assert len(found) == len(versions)
    assert all(name == name.lower() and "_" not in name for name in found)
    assert all(len(name) <= MAX_NAME for name in rendered(*(rhcos(f"n{i}", v) for i, v in enumerate(versions))))


def test_a_driver_object_s_daemonset_has_the_replaced_operator_s_name() -> None:
    pool = driver("a100", "{default: true, repository: nvcr.io/nvidia, image: driver, version: 580.95.05}")
    case = Case(
        policy=policy("driver: {useNvidiaDriverCRD: true}"), observed=openshift(rhcos("r", **OWNED), drivers=(pool,))
    )
    (name,) = sets(case)
    assert name == "nvidia-gpu-driver-rhcos4.16-" + name.rpartition("-")[2]
    elsewhere = dataclasses.replace(case, observed=dataclasses.replace(case.observed, openshift=None))
    assert set(sets(elsewhere)) == {"nvidia-gpu-driver-rhcos4.16-7c6d7bd86b"} != {name}


def figures(*nodes: ClusterNode, spec: str = "{}", cluster: OpenShift = OPENSHIFT) -> dict[str, float]:
    found = states.figures(states.toolkit_state(policy(spec), openshift(*nodes, openshift=cluster)))
    return {key.removeprefix("gpu_operator_openshift_driver_toolkit_"): value for key, value in found.items() if value}


NO_STREAM = dataclasses.replace(OPENSHIFT, toolkit=None)
BROKEN = dataclasses.replace(OPENSHIFT, toolkit=DriverToolkit(images={RHCOS: "image"}, broken=True))


@pytest.mark.parametrize(
    ("nodes", "spec", "cluster", "wanted"),
    [
        ((rhcos("a"),), "{}", OPENSHIFT, {"enabled": 1}),
        ((), "{}", OPENSHIFT, {}),
        ((rhcos("a"),), "operator: {use_ocp_driver_toolkit: false}", NO_STREAM, {}),
        ((rhcos("a"),), HOST_DRIVER, NO_STREAM, {}),
        ((rhcos("a"),), "driver: {usePrecompiled: true}", NO_STREAM, {}),
        ((rhcos("a"),), "{}", NO_STREAM, {"enabled": -1, "imagestream_missing": 1}),
        ((rhcos("a"),), "{}", BROKEN, {"enabled": 1, "imagestream_broken": 1}),
        ((rhcos("a"), rhcos("b", RHCOS_NEXT)), "{}", OPENSHIFT, {"enabled": 1, "rhcos_tags_missing": 1}),
        ((rhcos("a", ""),), "{}", OPENSHIFT, {"enabled": -1, "nfd_too_old": 1}),
        ((rhcos("a"), rhcos("b", "")), "{}", OPENSHIFT, {"enabled": 1, "nfd_too_old": 1}),
        ((rhcos("a", **OWNED),), "driver: {useNvidiaDriverCRD: true}", NO_STREAM, {}),
    ],
)
def test_the_metrics_say_what_is_in_the_way(
    nodes: tuple[ClusterNode, ...], spec: str, cluster: OpenShift, wanted: dict[str, float]
) -> None:
    assert figures(*nodes, spec=spec, cluster=cluster) == wanted


def test_what_pods_have_already_is_not_called_missing() -> None:
    """As while OpenShift is updated, when the ImageStream has the next version alone."""
    live = rendered(rhcos("a"))
    next_alone = dataclasses.replace(OPENSHIFT, toolkit=DriverToolkit(images={RHCOS_NEXT: "next"}))
    nodes = (rhcos("a"), rhcos("b", RHCOS_NEXT))
    observed = openshift(*nodes, daemon_sets=live, openshift=next_alone)
    assert told(Case(observed=observed)) == []
    found = states.figures(states.toolkit_state(policy(), observed))
    assert found["gpu_operator_openshift_driver_toolkit_rhcos_tags_missing"] == 0
    (line,) = told(Case(observed=dataclasses.replace(observed, openshift=NO_STREAM)))
    assert "on b drivers are built with packages" in line
    alone = openshift(rhcos("a"), daemon_sets=live, openshift=NO_STREAM)
    (line,) = told(Case(observed=alone))
    assert "keep theirs" in line
    figure = states.figures(states.toolkit_state(policy(), alone))
    assert figure["gpu_operator_openshift_driver_toolkit_enabled"] == 1


def test_elsewhere_there_is_one_metric_as_before() -> None:
    assert states.figures(None) == {"gpu_operator_openshift_driver_toolkit_enabled": -1.0}
