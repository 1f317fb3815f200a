"""``kgpu crds`` from the outside, and its work over the API in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError, KubeError
from kgpu.cli.crds import crds, definitions, install, remove
from kgpu.cli.main import main
from kgpu.formats import yaml
from kgpu.formats.crd.definitions import crds as own
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import Object, Resource

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
POLICIES = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
NAMES = [
    "clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com", "nodeoperations.kgpu.dev", "gpuusagepolicies.kgpu.dev",
    "gpuusageoverrides.kgpu.dev",
]  # fmt: skip
SERVED = {"type": "Established", "status": "True"}


def run(*arguments: object):
    return CliRunner().invoke(crds, [str(argument) for argument in arguments], catch_exceptions=False)


class Serving(FakeApi):
    """Establishes a definition when it has been asked about it a few times; ``conditions`` are what it says then."""

    def __init__(self, *conditions: Object, after: int = 2) -> None:
        super().__init__()
        self.conditions = conditions or (SERVED,)
        self.after = after

    async def get(self, resource: Resource, name: str, **where: Any) -> Object | None:
        found = await super().get(resource, name, **where)
        if found is None or resource != CRDS:
            return found
        self.after -= 1
        return {**found, "status": {"conditions": list(self.conditions)}} if self.after < 0 else found


def policy(name: str) -> Object:
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": name}}


async def stored(api: FakeApi) -> list[str]:
    return sorted(item["metadata"]["name"] for item in (await api.list(CRDS)).items)


@pytest.mark.parametrize(
    ("words", "read"), [([], yaml.load_all), (["-o", "json"], lambda text: json.loads(text)["items"])]
)
def test_what_is_printed_are_the_definitions(words: list[str], read: Any) -> None:
    done = run("print", *words)
    assert done.exit_code == 0
    assert read(done.stdout) == own()


def test_the_replaced_programs_name_does_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manage-crds", "print"]) == 0
    assert yaml.load_all(capsys.readouterr().out) == own()


async def test_apply_ends_when_all_kinds_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    api = Serving(after=3)
    await install(api, own(), 30)
    assert api.after < 0
    assert await stored(api) == sorted(NAMES)
    assert capsys.readouterr().out.split("\n")[:5] == [f"{name} is installed" for name in NAMES]


async def test_apply_again_changes_nothing() -> None:
    api = Serving()
    await install(api, own(), 30)
    before = await api.list(CRDS)
    await install(api, own(), 30)
    assert (await api.list(CRDS)).items == before.items


async def test_apply_that_is_not_served_in_time_says_so() -> None:
    with pytest.raises(KubeError, match="does not serve every definition after"):
        await install(FakeApi(), own(), 0.05)


async def test_apply_says_at_once_whose_names_are_taken() -> None:
    taken = {"type": "NamesAccepted", "status": "False", "message": '"nvd" is already in use'}
    with pytest.raises(KubeError, match='"nvd" is already in use'):
        await install(Serving(taken), own(), 30)


async def test_delete_refuses_while_there_are_objects() -> None:
    api = Serving(after=0)
    await install(api, own(), 30)
    for number in range(7):
        api.put(POLICIES, policy(f"p{number}"))
    with pytest.raises(KubeError, match="p0, p1, p2, p3, p4 and 2 more"):
        await remove(api, own(), 30, force=False)
    assert await stored(api) == sorted(NAMES)
    await remove(api, own(), 30, force=True)
    assert await stored(api) == []


async def test_delete_of_what_is_not_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    await remove(FakeApi(), own(), 30, force=False)
    assert capsys.readouterr().out.splitlines() == [f"{name} is not there" for name in NAMES]


async def test_delete_of_what_is_unused_leaves_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    api = Serving(after=0)
    await install(api, own(), 30)
    api.put(POLICIES, policy("mine"))
    await remove(api, own(), 30, force=False, unused=True)
    assert await stored(api) == NAMES[:1]
    out = capsys.readouterr().out
    assert f"{NAMES[0]} stays: there are objects of kind ClusterPolicy: mine" in out


async def test_delete_of_what_is_unused_leaves_what_others_installed(capsys: pytest.CaptureFixture[str]) -> None:
    api = Serving(after=0)
    foreign, *_ = own()
    foreign["metadata"]["labels"] = {}
    api.put(CRDS, foreign)
    await remove(api, own(), 30, force=False, unused=True)
    assert await stored(api) == NAMES[:1]
    assert f"{NAMES[0]} stays: it was not installed by kgpu" in capsys.readouterr().out


async def test_delete_that_is_held_up_says_so() -> None:
    api = FakeApi()
    held = own()[0]
    held["metadata"]["finalizers"] = ["example.com/held"]
    api.put(CRDS, held)
    with pytest.raises(KubeError, match="still there after"):
        await remove(api, own(), 0.05, force=False)


def test_files_and_folders_of_definitions(tmp_path: Path) -> None:
    first, second, *_ = own()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.yaml").write_text("---\n" + yaml.dump(first) + "---\n")
    (tmp_path / "two.json").write_text(json.dumps(second))
    (tmp_path / "notes.txt").write_text("not: read")
    assert definitions([str(tmp_path)]) == [first, second]
    assert definitions([str(tmp_path / "two.json")]) == [second]
    assert definitions([]) == own()


@pytest.mark.parametrize(
    "text",
    ["kind: ConfigMap", "[]", "5", "kind: CustomResourceDefinition", "kind: [x]\nmetadata: 5", "a: [", "# nothing"],
)
def test_files_of_anything_else_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError):
        definitions([str(tmp_path / "x.yaml")])


@pytest.mark.parametrize(
    "words", [["apply", "-f", "/no/such/file"], ["delete", "--kubeconfig", "/no/such/file"], ["print", "-o", "xml"]]
)
def test_bad_input_is_explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "crds", *words]) == 2
    text = capsys.readouterr().err
    assert "expected:" in text
    assert "to do:" in text
