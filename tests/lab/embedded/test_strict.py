"""Strict decoding of decoded JSON: what is unknown, what has the wrong type, and what comes out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.strict import check

POD = SchemaNode({"$ref": "io.k8s.api.core.v1.Pod"}, schema_data())
QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def pod(**container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": [{"name": "a", "image": "x:1", **container}]},
    }


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (pod(name=1), "number into Go struct field Container.spec.containers.name of type string"),
        (pod(imagePullPolicy=1), "number into Go struct field Container.spec.containers.imagePullPolicy of type v1.PullPolicy"),
        (pod(args="x"), "string into Go struct field Container.spec.containers.args of type []string"),
        (pod(args=[1]), "number into Go struct field Container.spec.containers.args of type string"),
        (pod(env={}), "object into Go struct field Container.spec.containers.env of type []v1.EnvVar"),
        (pod(env=[1]), "number into Go struct field Container.spec.containers.env of type v1.EnvVar"),
        (pod(env=[{"name": 1}]), "number into Go struct field EnvVar.spec.containers.env.name of type string"),
        (pod(tty=1), "number into Go struct field Container.spec.containers.tty of type bool"),
        (pod(resources={"limits": 1}),
         "number into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList"),
        (pod(ports=[{"containerPort": "80"}]),
         "string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32"),
        (pod(ports=[{"containerPort": 80.5}]),
         "number 80.5 into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32"),
        (pod(ports=[{"containerPort": 3000000000}]),
         "number 3000000000 into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32"),
        (pod(livenessProbe={"httpGet": {"port": True}}),
         "bool into Go struct field HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type int32"),
        ({"spec": {"volumes": [{"name": "a", "secret": {"items": [3]}}]}},
         "number into Go struct field SecretVolumeSource.spec.volumes.VolumeSource.secret.items of type v1.KeyToPath"),
        ({"spec": "x"}, "string into Go struct field Pod.spec of type v1.PodSpec"),
        ({"spec": {"containers": "x"}}, "string into Go struct field PodSpec.spec.containers of type []v1.Container"),
        ({"metadata": "x"}, "string into Go struct field Pod.metadata of type v1.ObjectMeta"),
        ({"metadata": {"labels": {"a": 1}}}, "number into Go struct field ObjectMeta.metadata.labels of type string"),
        ({"metadata": {"labels": []}}, "array into Go struct field ObjectMeta.metadata.labels of type map[string]string"),
        ({"metadata": {"creationTimestamp": 1}},
         "number into Go struct field ObjectMeta.metadata.creationTimestamp of type string"),
        ({"metadata": {"ownerReferences": [{"controller": "a"}]}},
         "string into Go struct field OwnerReference.metadata.ownerReferences.controller of type bool"),
        ({"spec": {"tolerations": [{"tolerationSeconds": "a"}]}},
         "string into Go struct field Toleration.spec.tolerations.tolerationSeconds of type int64"),
    ],
)  # fmt: skip
def test_wrong_types_in_the_words_of_the_real_server(obj: Any, message: str) -> None:
    assert check(obj, POD)[2] == [f"json: cannot unmarshal {message}"]


@pytest.mark.parametrize("quantity", [True, {}, []])
def test_quantities_are_text_or_numbers(quantity: Any) -> None:
    assert check(pod(resources={"limits": {"cpu": quantity}}), POD)[2] == [QUANTITY]
    good = pod(resources={"limits": {"cpu": 1.5, "memory": "1Gi", "nvidia.com/gpu": 1}})
    assert check(good, POD) == (good, [], [])


def test_unknown_fields_are_told_in_order_and_dropped() -> None:
    obj = {
        "metadata": {"name": "x", "foo": 2},
        "spec": {"containers": [{"name": "a", "foo": 1}], "Volumes": []},
        "foo": None,
    }
    cleaned, unknown, wrong = check(obj, POD)
    assert cleaned == {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a"}]}}
    assert unknown == [
        'unknown field "metadata.foo"',
        'unknown field "spec.containers[0].foo"',
        'unknown field "spec.Volumes"',
        'unknown field "foo"',
    ]
    assert wrong == []


def test_nulls_become_what_go_makes_of_them() -> None:
    obj = {"metadata": {"labels": {"a": None}, "name": None}, "spec": {"containers": [None]}}
    assert check(obj, POD) == ({"metadata": {"labels": {"a": ""}}, "spec": {"containers": [{}]}}, [], [])


def test_int_or_string_and_raw_parts_are_kept() -> None:
    probe = {"httpGet": {"port": "http"}}
    obj = {**pod(livenessProbe=probe, readinessProbe={"tcpSocket": {"port": 80}})}
    managed = [{"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {}}}}]
    obj["metadata"]["managedFields"] = managed
    assert check(obj, POD) == (obj, [], [])


def test_open_types_keep_what_they_do_not_know() -> None:
    node = SchemaNode(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-preserve-unknown-fields": True}, {}
    )
    assert check({"a": 1, "b": {"c": 2}}, node) == ({"a": 1, "b": {"c": 2}}, [], [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "metadata", "name", "labels", "containers", "x"]), inner),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_anything_is_cleaned_or_refused(obj: Any) -> None:
    before = copy.deepcopy(obj)
    cleaned, _, wrong = check(obj, POD)
    assert obj == before
    if not wrong:
        assert check(cleaned, POD) == (cleaned, [], [])
