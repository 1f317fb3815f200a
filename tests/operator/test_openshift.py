"""What is read of an OpenShift cluster: release, proxy and the images of its driver toolkit, whatever their shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.operator import openshift, projections
from kgpu.operator.model import ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.openshift import DriverToolkit, OpenShift
from kgpu.operator.plan import plan
from tests.operator.run.support import cluster, running
from tests.operator.world import NAMESPACE, SETTINGS, condition_of, node_object, policy, settle

RHCOS = "416.94.202409191851-0"
IMAGE = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:0"
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "status", "tags", "name", "from", "kind", "items", "history", "trustedCA", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def stream(*tags: Any, imported: Any = ()) -> dict[str, Any]:
    return {"metadata": {"name": "driver-toolkit"}, "spec": {"tags": list(tags)}, "status": {"tags": list(imported)}}


def tag(name: str, image: str = IMAGE, kind: str = "DockerImage") -> dict[str, Any]:
    return {"name": name, "from": {"kind": kind, "name": image}}


def test_images_are_by_version_and_latest_is_none() -> None:
    found = openshift.driver_toolkit(stream(tag(RHCOS), tag("latest")))
    assert found == DriverToolkit(images={RHCOS: IMAGE})


def test_a_tag_without_a_name_breaks_the_stream_and_not_its_other_tags() -> None:
    found = openshift.driver_toolkit(stream(tag(""), tag(RHCOS)))
    assert found == DriverToolkit(images={RHCOS: IMAGE}, broken=True)


def test_a_tag_that_follows_another_one_has_the_newest_image_that_was_imported() -> None:
    imported = {"tag": RHCOS, "items": [{"dockerImageReference": "new"}, {"dockerImageReference": "old"}]}
    assert openshift.driver_toolkit(stream(tag(RHCOS, "x:y", "ImageStreamTag"), imported=[imported])).images == {
        RHCOS: "new"
    }
    assert openshift.driver_toolkit(stream(tag(RHCOS, "x:y", "ImageStreamTag"))).images == {}


@pytest.mark.parametrize(
    ("history", "wanted"),
    [
        ([("Partial", "4.17.3"), ("Completed", "4.16.20"), ("Completed", "4.15.1")], "4.16"),
        ([("Partial", "4.17.3")], ""),
        ([("Completed", "4")], "4"),
        ([], ""),
    ],
)
def test_the_release_is_the_last_one_that_was_completed(history: list[tuple[str, str]], wanted: str) -> None:
    entries = [{"state": state, "version": version} for state, version in history]
    assert openshift.minor_release({"status": {"history": entries}}) == wanted


def test_the_proxy_in_force_counts_with_the_addresses_that_openshift_adds() -> None:
    proxy = {
        "spec": {"httpProxy": "http://p", "noProxy": "a"}, "status": {"httpProxy": "http://p", "noProxy": "a,.svc"},
    }  # fmt: skip
    assert openshift.proxy_variables(proxy) == {
        "HTTP_PROXY": "http://p", "http_proxy": "http://p", "NO_PROXY": "a,.svc", "no_proxy": "a,.svc",
    }  # fmt: skip
    wished = {"spec": {"httpsProxy": "http://p"}, "status": {}}
    assert openshift.proxy_variables(wished) == {"HTTPS_PROXY": "http://p", "https_proxy": "http://p"}
    assert openshift.proxy_variables({"spec": {"trustedCA": {"name": ""}}, "status": {}}) == {}


@given(JSON)
def test_objects_of_any_shape_are_survived(found: Any) -> None:
    obj = found if isinstance(found, dict) else {}
    rows = [projections.cluster_version(obj), projections.cluster_proxy(obj), projections.toolkit_stream(obj)]
    read = openshift.read(*([row] for row in rows))
    assert all(isinstance(value, str) for value in (read.version, *read.proxy.values(), *read.toolkit.images.values()))  # type: ignore[union-attr]


def test_nothing_of_these_objects_is_openshift_with_nothing() -> None:
    assert openshift.read([], [], []) == OpenShift()


OF_OPENSHIFT = (kinds.CLUSTER_VERSIONS, kinds.PROXIES, kinds.IMAGE_STREAMS, kinds.SECURITY_CONTEXT_CONSTRAINTS)


async def test_the_operator_follows_the_one_object_of_each_kind() -> None:
    api = cluster()
    api.served |= set(OF_OPENSHIFT)
    for name in ("version", "another"):
        history = {"history": [{"state": "Completed", "version": "4.16.3" if name == "version" else "3.1.1"}]}
        api.put(kinds.CLUSTER_VERSIONS, {"metadata": {"name": name}, "status": history})
    spec = {"httpProxy": "http://p", "trustedCA": {"name": "corp"}}
    api.put(kinds.PROXIES, {"metadata": {"name": "cluster"}, "spec": spec})
    api.put(
        kinds.IMAGE_STREAMS, {**stream(tag("wrong")), "metadata": {"name": "driver-toolkit", "namespace": "tenant"}}
    )
    async with running(api) as run:
        seen = run.operator.watching.observed({}).openshift
        assert seen == OpenShift(
            version="4.16", proxy={"HTTP_PROXY": "http://p", "http_proxy": "http://p"}, trusted_ca=True
        )
        assert "gpu_operator_openshift_driver_toolkit_imagestream_missing 0" in run.operator.figures.text()
        own = await api.get(kinds.NAMESPACES, NAMESPACE)
        assert own is not None
        assert own["metadata"]["labels"]["openshift.io/cluster-monitoring"] == "true"
        metadata = {"name": "driver-toolkit", "namespace": "openshift"}
        api.put(kinds.IMAGE_STREAMS, {**stream(tag(RHCOS)), "metadata": metadata})
        await run.settled()
        seen = run.operator.watching.observed({}).openshift
        assert seen is not None
        assert seen.toolkit == DriverToolkit(images={RHCOS: IMAGE})


def test_a_node_that_does_not_tell_its_version_is_a_cause_with_the_label() -> None:
    labels = {names.NFD_OS_ID: "rhcos", names.NFD_OS_VERSION: "4.16"}
    node = node_object("n1", labels=labels)
    observed = ObservedCluster(
        policies=(policy(spec={"driver": {"enabled": True}}),), nodes=(read_node(node),), openshift=OpenShift()
    )
    made = plan(settle(observed), SETTINGS)
    condition = condition_of(made, "DriverReady")
    assert condition["reason"] == "SystemUnknown"
    assert names.NFD_OSTREE_VERSION in condition["message"]
    assert not [one for one in made.advice if one.subject == "Node/n1" and names.NFD_OS_ID in one.remedy]


async def test_without_the_right_to_read_them_drivers_are_planned_all_the_same_and_it_is_told() -> None:
    api = cluster()
    api.served |= set(OF_OPENSHIFT)
    for plural in ("imagestreams", "proxies", "clusterversions"):
        api.refuse["list", plural] = 403
    async with running(api) as run:
        assert run.operator.figures.passes
        assert run.operator.watching.observed({}).openshift == OpenShift()
        told = {record.remedy for record in run.operator.watching.advice()}
        assert any("imagestreams.image.openshift.io in namespace openshift" in remedy for remedy in told)
        assert len(told) == 3


async def test_other_clusters_have_none_of_it() -> None:
    async with running(cluster()) as run:
        assert run.operator.watching.observed({}).openshift is None
        assert "openshift_driver_toolkit_nfd_too_old" not in run.operator.figures.text()
