"""Environment, command and volumes of a container, as the kubelet puts them together."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.nodes import environment, images, volumes
from kgpu.lab.nodes.environment import MissingReferenceError, build, command, expand

NAMES = st.text("ABC_", min_size=1, max_size=3)


def pod(**spec: object) -> dict:
    metadata = {"name": "p", "namespace": "d", "uid": "u", "labels": {"a": 'x"y'}, "annotations": {"k/l": "v"}}
    return {"metadata": metadata, "spec": {"containers": [], **spec}}


def made(container: dict, objects: dict | None = None) -> dict[str, str]:
    facts = {"status.podIP": "10.0.0.1"}
    return build(pod(), container, base={"BASE": "1"}, objects=objects or {}, facts=facts, allocatable={"cpu": "16"})


@given(st.text(max_size=30), st.dictionaries(NAMES, st.text(max_size=5)))
def test_what_is_unknown_stays(text: str, known: dict[str, str]) -> None:
    assert expand(text.replace("$", ""), known) == text.replace("$", "")
    assert expand("$(UNKNOWN_NAME)", known) == "$(UNKNOWN_NAME)"


@given(NAMES, st.text(max_size=9))
def test_references_and_escapes(name: str, value: str) -> None:
    assert expand(f"<$({name})>", {name: value}) == f"<{value}>"
    assert expand(f"$$({name})", {name: value}) == f"$({name})"
    assert expand("$$$$", {}) == "$$"


def test_later_entries_see_earlier_ones() -> None:
    rows = [{"name": "A", "value": "$(BASE)"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}]
    found = made({"name": "c", "env": rows})
    assert found == {"BASE": "1", "A": "1", "B": "1$(C)", "C": "3"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a']", 'x"y'),
        ("metadata.labels", 'a="x\\"y"'),
        ("metadata.annotations['k/l']", "v"),
        ("metadata.annotations['none']", ""),
        ("status.podIP", "10.0.0.1"),
        ("spec.nothing.here", ""),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    found = made({"name": "c", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]})
    assert found["A"] == value


@pytest.mark.parametrize(
    ("ref", "value"),
    [
        ({"resource": "limits.cpu"}, "16"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "16000"),
        ({"resource": "requests.memory", "divisor": "1Mi"}, "2"),
        ({"resource": "requests.cpu"}, "0"),
    ],
)
def test_resources_of_the_container(ref: dict, value: str) -> None:
    container = {"name": "c", "resources": {"requests": {"memory": "1100Ki"}}}
    container["env"] = [{"name": "A", "valueFrom": {"resourceFieldRef": ref}}]
    assert made(container)["A"] == value


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "none"}}, "couldn't find key none in Secret d/s"),
    ],
)
def test_what_is_missing_has_the_kubelets_words(source: dict, message: str) -> None:
    secret = {"data": {"k": base64.b64encode(b"v").decode()}}
    entry = {"name": "A", "valueFrom": source}
    with pytest.raises(MissingReferenceError) as caught:
        made({"name": "c", "env": [entry]}, {("secret", "s"): secret})
    assert caught.value.what == message
    next(iter(source.values()))["optional"] = True
    assert "A" not in made({"name": "c", "env": [entry]}, {("secret", "s"): secret})


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, ["entry", "default"]),
        ({"args": ["x"]}, ["entry", "x"]),
        ({"command": ["y"]}, ["y"]),
        ({"command": ["y"], "args": ["$(V)"]}, ["y", "1"]),
    ],
)
def test_command_and_arguments(container: dict, words: list[str]) -> None:
    assert command(container, ("entry",), ("default",), {"V": "1"}) == words


def test_every_reference_is_fetched() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}, {"name": "Y", "value": "1"}],
    }
    assert environment.needed(container) == {("configmap", "a"), ("secret", "b"), ("secret", "c")}


@given(path=st.text("./ab~\0", max_size=12))
def test_no_file_of_a_volume_lies_outside(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    folder = tmp_path_factory.mktemp("v")
    place = folder / "in" / "volume"
    place.mkdir(parents=True)
    try:
        found = volumes.inside(place, path)
    except (volumes.VolumeError, ValueError):
        return
    assert Path(found).resolve().is_relative_to(place)


def test_items_choose_and_rename(tmp_path: Path) -> None:
    source = {"name": "c", "items": [{"key": "a", "path": "deep/er/name"}]}
    about = pod(volumes=[{"name": "v", "configMap": source}])
    objects = {("configmap", "c"): {"data": {"a": "1", "b": "2"}}}
    found = volumes.write(about, tmp_path, objects=objects, facts={}, allocatable={})
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["v/deep/er/name"]
    assert found == {"v": tmp_path / "v"}
    source["items"][0]["path"] = "../out"
    with pytest.raises(volumes.VolumeError):
        volumes.write(about, tmp_path, objects=objects, facts={}, allocatable={})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "image",
    [
        "busybox", "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", "localhost:5000/a/b:c", "a__b/c-d.e",
        "x@sha256:" + "0" * 64, "[::1]:5000/x",
    ],
)  # fmt: skip
def test_good_image_names(image: str) -> None:
    assert images.problem(image) == ""


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("", "invalid reference format"),
        ("a b", "invalid reference format"),
        ("../../etc", "invalid reference format"),
        ("x:", "invalid reference format"),
        ("x@sha256:0", "invalid reference format"),
        ("BusyBox:1", "invalid reference format: repository name (library/BusyBox) must be lowercase"),
    ],
)
def test_bad_image_names(image: str, why: str) -> None:
    text = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}'
    assert images.problem(image) == text
