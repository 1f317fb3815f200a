"""What is rendered, object by object, against files; and that an API server takes every one of them.

To renew the files after a wanted change, and then read the difference:
``KGPU_RENEW_GOLDEN=1 pytest tests/operator/objects/test_golden.py``.
"""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path

import pytest

from kgpu.formats import yaml
from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.core.writing import APPLY
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules
from kgpu.operator.model import Object
from tests.operator.objects.scenes import CASES

GOLDEN = Path(__file__).parent / "golden"
KINDS = Kinds()


@functools.cache
def objects(name: str) -> tuple[Object, ...]:
    rendered = CASES[name].rendered()
    assert not rendered.errors, {key: str(error) for key, error in rendered.errors.items()}
    return rendered.objects


@pytest.mark.parametrize("name", CASES)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    text = "---\n".join(yaml.dump(one) for one in objects(name))
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("KGPU_RENEW_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_every_golden_file_is_of_a_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(CASES)


def served() -> ApiCore:
    core = ApiCore(KINDS, ObjectStore(), lambda _kind: BuiltinRules())
    core.create(KINDS.need("", "namespaces"), "", {"metadata": {"name": "gpu-operator"}}, CALL)
    return core


CALL = Call(user=ApiUser("admin", ("system:masters",)), manager="kgpu-operator", validation="Strict", force=True)


@pytest.mark.parametrize("name", CASES)
def test_an_api_server_takes_it_and_a_second_time_changes_nothing(name: str) -> None:
    core = served()

    def applied() -> list[str]:
        versions = []
        for one in objects(name):
            kind = KINDS.of(one["apiVersion"], one["kind"])
            if kind is None:  # a kind of the Prometheus operator
                assert one["apiVersion"].startswith("monitoring.coreos.com/")
                continue
            about = one["metadata"]
            made, _ = core.patch(kind, about.get("namespace", ""), about["name"], APPLY, copy.deepcopy(one), CALL)
            versions.append(made.obj["metadata"]["resourceVersion"])
        return versions

    assert applied() == applied()


@pytest.mark.parametrize("name", CASES)
def test_an_object_says_whose_it_is(name: str) -> None:
    for one in objects(name):
        if one["kind"] == "Namespace":
            assert set(one["metadata"]) == {"name", "labels"}
            continue
        owner, *others = one["metadata"]["ownerReferences"]
        assert owner["kind"] in {"ClusterPolicy", "NVIDIADriver"}
        # What an NVIDIADriver owns outlives it until the plan says otherwise: a driver may be in use.
        assert [row["kind"] for row in others] == (["ClusterPolicy"] if owner["kind"] == "NVIDIADriver" else [])
        assert not any(row["controller"] or row["blockOwnerDeletion"] for row in others)
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is True
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "kgpu-operator"
        assert labels["nvidia.com/gpu-operator.state"]


@pytest.mark.parametrize("name", CASES)
def test_a_pod_has_what_it_refers_to(name: str) -> None:
    accounts = {one["metadata"]["name"] for one in objects(name) if one["kind"] == "ServiceAccount"} | {"kgpu-agent"}
    for one in objects(name):
        if one["kind"] == "DaemonSet":
            spec = one["spec"]["template"]["spec"]
            volumes = {volume["name"] for volume in spec["volumes"]}
            mounted = {
                mount["name"]
                for container in (*spec["containers"], *spec.get("initContainers", ()))
                for mount in container["volumeMounts"]
            }
            assert volumes == mounted
            assert spec["serviceAccountName"] in accounts
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_one_object_is_rendered_once() -> None:
    for name in CASES:
        keys = [(one["kind"], one["metadata"]["name"]) for one in objects(name)]
        assert len(keys) == len(set(keys)), name
