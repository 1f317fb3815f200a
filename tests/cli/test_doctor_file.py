"""``kgpu doctor -f``: would the pods of a manifest run, and if not, why, before it is applied."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import KubeError
from kgpu.cli import _doctor_file
from kgpu.cli._doctor_file import Asked, WouldRun, look_at_file, refusals
from kgpu.cli.main import main
from kgpu.doctor.snapshot import Snapshot
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import DEPLOYMENTS
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource
from tests.placement.clusters import node, pod

Said = pytest.CaptureFixture[str]
GPU = "nvidia.com/gpu"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [node("a"), pod("p", 2, "a")]}))
    return path


def template(gpus: int, **spec: Any) -> Object:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container], **spec}}


def bare(name: str, gpus: int, **spec: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template(gpus, **spec)["spec"]}


def deployment(name: str, gpus: int, replicas: int, **spec: Any) -> Object:
    whole = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template(gpus, **spec)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": whole}


@pytest.fixture
def ask(dump: Path, tmp_path: Path, capsys: Said) -> Any:
    """(exit code, output) of the doctor about a file with these objects."""

    def ask(*objects: Object, more: tuple[str, ...] = ()) -> tuple[int, str]:
        path = tmp_path / "m.json"
        path.write_text(json.dumps({"kind": "List", "items": objects} if len(objects) != 1 else objects[0]))
        code = main(["kgpu", "doctor", "-f", str(path), "--from", str(dump), *more])
        return code, capsys.readouterr().out

    return ask


def test_what_would_run_is_said_with_its_node(ask: Any) -> None:
    assert ask(deployment("serve", 2, 3)) == (0, "3 of 3 pods would get a node: a (3 pods)\n")


def test_the_cause_and_the_change_to_the_manifest(ask: Any, tmp_path: Path) -> None:
    code, out = ask(deployment("serve", 1, 2, nodeSelector={"nvidia.com/gpu.product": "A100"}))
    assert code == 1
    assert "2 pods would wait:" in out
    assert "SCH-08" in out
    (command,) = [line.strip() for line in out.splitlines() if "kubectl patch" in line]
    patch = '{"spec":{"template":{"spec":{"nodeSelector":{"nvidia.com/gpu.product":null}}}}}'
    assert command == f"kubectl patch --local -f {tmp_path / 'm.json'} -p '{patch}' -o yaml"
    assert f"kgpu doctor -f {tmp_path / 'm.json'}" in out
    assert "kgpu doctor pod" not in out
    assert "deleted and made again" not in out


def test_pods_of_the_manifest_count_for_each_other_and_nobody_is_told_to_end_one(ask: Any) -> None:
    code, out = ask(bare("first", 4), bare("second", 4))
    assert code == 1
    assert "1 of 2 pods would get a node: a (1 pod)" in out
    assert "held by default/first (4), ml/p (2)" in " ".join(out.split())
    assert "ask for 2 nvidia.com/gpu instead of 4; then it fits node a" in out
    assert "delete pod first" not in out


def test_of_a_file_with_several_objects_the_change_is_said_in_words(ask: Any) -> None:
    _, out = ask(bare("big", 9), bare("small", 1))
    assert "ask for 5 nvidia.com/gpu instead of 9; then it fits node a\n" in out
    assert "kubectl patch" not in out


def test_json_has_pods_and_findings(ask: Any) -> None:
    code, out = ask(bare("big", 9), more=("-o", "json"))
    found = json.loads(out)
    assert code == 1
    assert found["pods"] == [{"pod": "default/big", "node": None}]
    assert [one["id"] for one in found["findings"]] == ["SCH-00"]
    assert found["refusals"] == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("node", "a"), "-f beside an object"),
        (("--host",), "-f beside an object"),
        (("-o", "sarif"), "-f has no form sarif"),
    ],
)
def test_what_goes_with_no_manifest_is_refused(words: tuple[str, ...], what: str, dump: Path, capsys: Said) -> None:
    path = dump.with_name("m.json")
    path.write_text(json.dumps(bare("p", 1)))
    assert main(["kgpu", "doctor", "-f", str(path), "--from", str(dump), *words]) == 2
    assert what in capsys.readouterr().err


class Refusing(FakeApi):
    """Says no to objects by their kind."""

    def __init__(self, **words: KubeError) -> None:
        super().__init__()
        self.words = words
        self.asked: list[str] = []

    async def try_create(self, resource: Resource, obj: Object) -> Object:
        self.asked.append(resource.kind)
        if resource.kind in self.words:
            raise self.words[resource.kind]
        return await super().try_create(resource, obj)


def no(message: str, code: int = 403) -> KubeRefusedError:
    return KubeRefusedError("refused", "", "", code=code, message=message)


async def test_an_object_that_is_refused_is_told_in_the_servers_words_and_its_pod_not_asked_about() -> None:
    api = Refusing(Deployment=no("spec is invalid", 422))
    asked = await refusals(api, (deployment("serve", 1, 1), bare("p", 1)), "ml")
    assert (asked.refused, asked.notes) == ({"Deployment/serve": "spec is invalid"}, [])
    assert asked.decoded == {"Deployment/serve", "Pod/p"}
    assert api.asked == ["Deployment", "Pod"]


async def test_a_pod_that_its_controller_could_not_make_is_told() -> None:
    api = Refusing(Pod=no('pods "serve-x" is forbidden: exceeded quota: q'))
    asked = await refusals(api, (deployment("serve", 1, 1),), "ml")
    assert asked.refused == {"Deployment/serve": 'pods "serve-x" is forbidden: exceeded quota: q'}
    assert asked.notes == []
    assert not (await api.list(PODS)).items
    assert not (await api.list(DEPLOYMENTS)).items


async def test_what_could_not_be_asked_is_told_and_no_refusal() -> None:
    api = Refusing(Pod=no('pods is forbidden: User "u" cannot create resource "pods" in API group ""'))
    new = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}
    there = {**bare("q", 1), "metadata": {"name": "q", "namespace": "new"}}
    asked = await refusals(api, (bare("p", 1), new, there), "ml")
    assert (asked.refused, asked.decoded) == ({}, set())
    assert len(asked.notes) == 2
    assert "you may not create one" in asked.notes[0]
    assert "namespace new is not there yet" in asked.notes[1]
    gone = await refusals(Refusing(Pod=KubeError("the API server can't be reached", "", "")), (bare("p", 1),), "ml")
    assert "can't be reached" in gone.notes[0]
    assert gone.decoded == set()
    api = Refusing()
    api.put(PODS, {"metadata": {"name": "p", "namespace": "ml"}})
    there_already = await refusals(api, (bare("p", 1),), "ml")
    assert (there_already.refused, there_already.notes) == ({}, ["Pod p is there already"])
    assert there_already.decoded == {"Pod/p"}


async def test_a_version_that_nobody_serves_is_not_asked_about_under_another() -> None:
    api = Refusing()
    assert await refusals(api, ({**deployment("serve", 1, 1), "apiVersion": "app/v1"},), "ml") == Asked()
    assert api.asked == []


async def test_metadata_of_a_wrong_type_breaks_nothing() -> None:
    objects = ({**bare("p", 1), "metadata": []}, {**deployment("serve", 1, 1), "spec": {"template": {"metadata": [1]}}})
    assert (await refusals(Refusing(), objects, "ml")).refused == {}


def looked_at(api: FakeApi, monkeypatch: pytest.MonkeyPatch, *objects: Object, kubelet: str = "v1.30.0") -> WouldRun:
    """What is said of the objects beside a cluster with this API server."""
    there = node("a")
    there["status"]["nodeInfo"] = {"kubeletVersion": kubelet}
    snapshot = Snapshot()
    snapshot.add(there)

    async def see(path: str, kubeconfig: str) -> Snapshot:
        return snapshot

    monkeypatch.setattr(_doctor_file, "read_manifests", lambda _: objects)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda _: api)
    return asyncio.run(look_at_file(("m.yaml",), "default", "", "", see))


def with_typo(name: str) -> Object:
    pod = bare(name, 1)
    pod["spec"]["later"] = 1
    return pod


def test_what_the_server_says_of_fields_counts_and_where_it_was_not_asked_what_is_known_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes_it = looked_at(Refusing(), monkeypatch, with_typo("p"))
    assert (takes_it.refusals, takes_it.nodes, takes_it.notes) == ((), {"default/p": "a"}, ())
    no_right = no('pods is forbidden: User "u" cannot create resource "pods" in API group ""')
    found = looked_at(Refusing(Pod=no_right), monkeypatch, with_typo("p"))
    assert found.refusals == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.later"',
    )
    assert (found.nodes, found.exit_code) == ({}, 1)
    newer = looked_at(Refusing(Pod=no_right), monkeypatch, with_typo("p"), kubelet="v9.1.0")
    assert (newer.refusals, newer.nodes) == ((), {"default/p": "a"})
    assert any('unknown field "spec.later"' in note and "may know more" in note for note in newer.notes)
