"""Fields of a manifest that no API server takes: its words, for every kind that manifests may have, in both commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.cli._manifest_fields import check_fields, field_refusals, may_know_more, schema_version
from kgpu.cli._manifests import by_key
from kgpu.cli.main import main
from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.embedded.types.rules import BuiltinRules
from kgpu.placement.pod_sets import REPLICA_SPECS
from tests.placement.clusters import node, pod

Said = pytest.CaptureFixture[str]
Object = dict[str, Any]
TYPO = {"name": "c", "image": "i", "resources": {"limit": {"nvidia.com/gpu": 1}}}
WRONG = "containers[0].resources.limit"


def of(api_version: str, kind: str, **spec: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def template(*, container: Object = TYPO, **more: Any) -> Object:
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}, **more}


SELECTOR = {"matchLabels": {"app": "x"}}
BUILT_IN = [
    of("v1", "Pod", **template()["spec"]),
    of("v1", "Pod", nodeSelectr={}, containers=[{"resource": {}, "env": [{"val": "b"}], "name": "c"}]),
    of("apps/v1", "Deployment", selector=SELECTOR, template=template()),
    of("apps/v1", "Deployment", selector=SELECTOR, tmpl=template()),
    of("apps/v1", "Deployment", selector=SELECTOR, replicas="2", template=template(extra=1)),
    of("apps/v1", "ReplicaSet", selector=SELECTOR, template=template()),
    of("apps/v1", "StatefulSet", selector=SELECTOR, serviceNam="s", template=template(), volumeClaimTemplates=[{"a": 1}]),
    of("apps/v1", "DaemonSet", selector=SELECTOR, template=template()),
    of("batch/v1", "Job", template=template(), parallel=2),
    of("batch/v1", "CronJob", schedule="* * * * *", jobTemplate={"spec": {"template": template()}}),
    of("v1", "PersistentVolumeClaim", storageClasName="fast"),
    of("resource.k8s.io/v1", "ResourceClaimTemplate", spec={"devices": {"request": []}}),
    {**of("v1", "Pod", **template(container={"name": "c"})["spec"]), "metadata": {"name": "x", "label": {"a": "b"}}},
]  # fmt: skip


@pytest.mark.parametrize("obj", BUILT_IN, ids=[f"{at}-{obj['kind']}" for at, obj in enumerate(BUILT_IN)])
def test_the_words_are_those_of_the_embedded_api_server(obj: Object) -> None:
    kind = Kinds().of(obj["apiVersion"], obj["kind"])
    assert kind is not None
    with pytest.raises(ApiError) as caught:
        BuiltinRules().decode(kind, by_key(obj), Call(user=ApiUser("admin"), validation="Strict"))
    assert field_refusals([obj]) == {f"{obj['kind']}/x": caught.value.message}


def test_what_an_api_server_takes_is_not_refused() -> None:
    good = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}, "env": None}
    assert field_refusals(
        [
            {**of("v1", "Pod", **template(container=good)["spec"]), "status": {"phase": "Running"}},
            of("apps/v1", "Deployment", selector=SELECTOR, template=template(container=good)),
            of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[{"template": {"spec": {"template": template(container=good)}}}]),
            of("scheduling.x-k8s.io/v1alpha1", "PodGroup", minMember=4),
        ]
    ) == {}  # fmt: skip


CUSTOM = [
    (
        of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[{}, {"template": {"spec": {"template": template()}}}]),
        f"spec.replicatedJobs[1].template.spec.template.spec.{WRONG}",
    ),
    (
        of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", leaderWorkerTemplate={"workerTemplate": template()}),
        f"spec.leaderWorkerTemplate.workerTemplate.spec.{WRONG}",
    ),
    *(
        (of("kubeflow.org/v1", kind, **{field: {"Worker": {"template": template()}}}), f"spec.{field}.Worker.template.spec.{WRONG}")
        for kind, field in REPLICA_SPECS.items()
    ),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "path"), CUSTOM, ids=[obj["kind"] for obj, _ in CUSTOM])
def test_templates_in_kinds_of_others_are_looked_at_where_they_are(obj: Object, path: str) -> None:
    (words,) = field_refusals([obj]).values()
    version = obj["apiVersion"].rpartition("/")[2]
    start = f'{obj["kind"]} in version "{version}" cannot be handled as a {obj["kind"]}: strict decoding error: '
    assert words == f'{start}unknown field "{path}"'


@pytest.mark.parametrize(
    ("api_version", "words"),
    [("app/v1", 'no matches for kind "Deployment" in version "app/v1"'), ("", "apiVersion not set")],
)
def test_a_version_that_no_server_has_is_told_in_kubectls_words(api_version: str, words: str) -> None:
    assert field_refusals([of(api_version, "Deployment", template=template())]) == {"Deployment/x": words}


def of_version(kubelet: str) -> Object:
    found = node("a")
    found["status"]["nodeInfo"] = {"kubeletVersion": kubelet}
    return found


def test_a_newer_cluster_may_know_more_fields() -> None:
    major, minor = schema_version().split(".")[:2]
    newer = of_version(f"{major}.{int(minor) + 1}.0-eks-1")
    assert may_know_more([newer])
    assert not may_know_more([of_version(schema_version()), of_version("v1.9.3"), of_version("unknown"), node("b")])
    (note,) = check_fields([BUILT_IN[0]], [newer])
    assert f'unknown field "spec.{WRONG}"' in note
    assert note.endswith(f"says Kubernetes {schema_version()}; this cluster is newer and may know more")
    with pytest.raises(ConfigError, match="unknown field") as caught:
        check_fields([BUILT_IN[0]], [of_version(schema_version())])
    assert "kubectl explain pod --recursive" in caught.value.remedy


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A dump of a cluster, and a manifest with a field that there is not."""
    dump, manifest = tmp_path / "cluster.json", tmp_path / "m.json"
    dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [node("a"), pod("p", 2, "a")]}))
    manifest.write_text(json.dumps(BUILT_IN[0]))
    return str(dump), str(manifest)


def test_whatif_refuses_it(files: tuple[str, str], capsys: Said) -> None:
    dump, manifest = files
    assert main(["kgpu", "whatif", "--snapshot", dump, "-f", manifest]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f'the API server would refuse Pod/x: Pod in version "v1" cannot be handled as a Pod: {strict()}' in err


def test_doctor_tells_it_also_without_a_server(files: tuple[str, str], capsys: Said) -> None:
    dump, manifest = files
    assert main(["kgpu", "doctor", "-f", manifest, "--from", dump]) == 1
    line = f'✘ the API server would refuse it: Pod in version "v1" cannot be handled as a Pod: {strict()}'
    assert capsys.readouterr().out.rstrip() == line
    good = of("v1", "Pod", **template(container={"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}})["spec"])
    good["metadata"]["name"] = "good"
    Path(manifest).write_text(json.dumps({"kind": "List", "items": [BUILT_IN[0], good]}))
    assert main(["kgpu", "doctor", "-f", manifest, "--from", dump]) == 1
    refused, placed = capsys.readouterr().out.splitlines()
    assert refused.startswith("✘ the API server would refuse it: Pod/x: Pod in version")
    assert placed == "1 of 1 pod would get a node: a (1 pod)"


def strict() -> str:
    return f'strict decoding error: unknown field "spec.{WRONG}"'


def test_both_say_that_pods_ask_for_no_accelerator(files: tuple[str, str], capsys: Said) -> None:
    dump, manifest = files
    Path(manifest).write_text(json.dumps(of("v1", "Pod", containers=[{"name": "c", "image": "i"}])))
    told = "note: this pod asks for no accelerator: its containers request nothing; "
    for words in (("whatif", "--snapshot", dump), ("doctor", "--from", dump)):
        assert main(["kgpu", *words, "-f", manifest]) == 0
        assert told in capsys.readouterr().out


def test_the_schemas_are_read_only_for_a_manifest(files: tuple[str, str]) -> None:
    """``kgpu whatif`` without ``-f`` loads nothing of the lab."""
    program = (
        "import sys; from kgpu.cli.main import main\n"
        f"code = main(['kgpu', 'whatif', '--snapshot', {files[0]!r}, '--drain', 'a'])\n"
        "sys.exit(f'{code} {[name for name in sys.modules if name.startswith(\"kgpu.lab\")]}')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "3 []", done.stderr
