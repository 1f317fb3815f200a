"""What people put into files in other forms is read as well, and what a file does not have is told."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.doctor.archive import write
from kgpu.doctor.model import Missing
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_text
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import files, texts
from kgpu.formats import yaml
from tests.budget import tries

GPU = {"limits": {"nvidia.com/gpu": 1}}
POD: dict[str, Any] = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "ml"},
    "spec": {"containers": [{"name": "main", "image": "한글:1", "resources": GPU}]}, "status": {"phase": "Pending"},
}  # fmt: skip
CRASHING: dict[str, Any] = {
    **POD,
    "metadata": {"name": "serve", "namespace": "ml"},
    "spec": {**POD["spec"], "nodeName": "gpu-1"},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {"name": "main", "ready": False, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        ],
    },
}


def node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
    }  # fmt: skip


def listed(*objects: dict[str, Any]) -> dict[str, Any]:
    """As kubectl prints it: keys sorted, metadata last."""
    return {"apiVersion": "v1", "items": list(objects), "kind": "List", "metadata": {"resourceVersion": ""}}


PODS = yaml.dump(listed(POD, CRASHING))
NODES = yaml.dump(listed(node("a"), node("b")))
SPACED = re.sub(r"(?m)^(?=[- ])", "  ", NODES)


def seen(path: Path) -> tuple[set[str], set[str]]:
    found = files.read(str(path))
    return {pod.name for pod in found.pods.values()}, set(found.nodes)


@pytest.mark.parametrize(
    ("text", "pods", "nodes"),
    [
        (PODS + NODES, {"train", "serve"}, {"a", "b"}),
        (NODES + PODS + yaml.dump(node("c")), {"train", "serve"}, {"a", "b", "c"}),
        (yaml.dump(node("c")) + NODES, set(), {"a", "b", "c"}),
        (SPACED + PODS, {"train", "serve"}, {"a", "b"}),
        (PODS + "---\n" + NODES + yaml.dump({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "c"}}), {"train", "serve"}, {"a", "b", "c"}),
    ],
)  # fmt: skip
def test_lists_in_one_file_without_a_mark_between_them(
    text: str, pods: set[str], nodes: set[str], tmp_path: Path
) -> None:
    (tmp_path / "all.yaml").write_text(text)
    assert seen(tmp_path / "all.yaml") == (pods, nodes)
    assert not [gap for gap in files.read(str(tmp_path / "all.yaml")).missing if "line" in gap.what]


@pytest.mark.parametrize(
    "rest", ["Error from server (Forbidden): pods is forbidden\n", "error: it broke\n", "foo: 1\n", "}{\n"]
)
def test_what_is_left_over_is_told(rest: str, tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(NODES + rest + NODES.replace("name: a", "name: c"))
    found = files.read(str(tmp_path / "all.yaml"))
    assert {"a", "b"} <= set(found.nodes)
    assert [gap for gap in found.missing if "begins at line" in gap.what]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("name", ["x.yaml", "x.json", "x"])
def test_encodings_of_other_shells(encoding: str, name: str, tmp_path: Path) -> None:
    text = json.dumps(listed(POD, node("a")), ensure_ascii=False) if name == "x.json" else PODS + NODES
    (tmp_path / name).write_bytes(text.replace("\n", "\r\n").encode(encoding))
    found = files.read(str(tmp_path / name))
    assert found.pods[("ml", "train")].text("spec.containers[0].image") == "한글:1"
    assert "a" in found.nodes


@pytest.mark.parametrize("between", ["", "\n", "\n\n", " "])
def test_json_after_json(between: str, tmp_path: Path) -> None:
    for indent in (None, 4):
        values = [json.dumps(one, indent=indent) for one in (listed(POD), node("a"), listed(node("b")))]
        (tmp_path / "x.json").write_text(between.join(values))
        assert seen(tmp_path / "x.json") == ({"train"}, {"a", "b"})


def test_a_broken_line_of_json_spoils_no_other(tmp_path: Path) -> None:
    broken = '{"kind": "Node", "metadata": {"name": "broken'
    (tmp_path / "x.json").write_text("\n".join([json.dumps(node("a")), broken, json.dumps(node("b"))]))
    found = files.read(str(tmp_path / "x.json"))
    assert set(found.nodes) == {"a", "b"}
    assert [gap.what for gap in found.missing if "line" in gap.what] == ["what begins at line 2 of x.json"]


def test_a_folder_with_names_of_any_kind(tmp_path: Path) -> None:
    (tmp_path / "pods.txt").write_text("Warning: v1 ComponentStatus is deprecated\n" + PODS)
    (tmp_path / "nodes").write_text(json.dumps(listed(node("a"))))
    (tmp_path / "more.yaml.gz").write_bytes(gzip.compress(NODES.encode("utf-16")))
    (tmp_path / "ALL.YAML").write_text("# dumped\n---\n" + yaml.dump(node("c")))
    (tmp_path / "apply.sh").write_text("kubectl apply -f - <<EOF\n" + yaml.dump(node("no")) + "EOF\n")
    (tmp_path / "notes.md").write_text("apiVersions: all\n" + NODES)
    (tmp_path / "noise.gz").write_bytes(b"\x1f\x8b\x08noise")
    assert seen(tmp_path) == ({"train", "serve"}, {"a", "b", "c"})


def test_a_packed_file_in_a_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE", 1 << 16)
    (tmp_path / "bomb.yaml.gz").write_bytes(gzip.compress(NODES.encode() + b"#" * (8 << 20)))
    (tmp_path / "good.yaml").write_text(NODES.replace("name: a", "name: c"))
    found = files.read(str(tmp_path))
    assert set(found.nodes) == {"b", "c"}
    assert Missing("bomb.yaml.gz", "too large", "write it again") in found.missing


@tries(80)
@given(st.text(st.sampled_from('-: \n\r{}[]",aknitems'), max_size=200))
def test_any_text_is_taken_apart_without_loss(text: str) -> None:
    data = text.encode()
    for line, chunk, _ in texts.yaml_chunks(data):
        assert 0 <= line <= data.count(b"\n")
        assert len(chunk) <= len(data) + 2
    for line, value in texts.json_values(data):
        assert 0 <= line <= data.count(b"\n")
        assert value
    texts.like_objects(data)


def test_what_a_file_does_not_have_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(PODS)
    missing = {gap.what: gap.how for gap in files.read(str(tmp_path / "x.yaml")).missing}
    assert "kubectl get nodes" in missing["nodes of the cluster"]
    assert "kubectl get events -A" in missing["events of the cluster"]
    assert "pods of the cluster" not in missing
    assert "gpu-1" in missing["what the nodes' own files, kernel logs and drivers say"]
    commands = [how for what, how in missing.items() if what.startswith("the log of")]
    assert sorted(commands) == [
        "kubectl -n ml logs serve -c main",
        "kubectl -n ml logs serve -c main --previous",
    ]


def test_what_is_there_is_not_missing(tmp_path: Path) -> None:
    event = {"kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "reason": "x",
             "involvedObject": {"kind": "Pod", "name": "train", "namespace": "ml"}}  # fmt: skip
    (tmp_path / "x.yaml").write_text(PODS + NODES)
    (tmp_path / "events.json").write_text(json.dumps(event))
    (tmp_path / "serve.log").write_text("one\n")
    (tmp_path / "serve.previous.log").write_text("one\n")
    for name in ("a", "b", "gpu-1"):
        facts = {"kind": "HostFacts", "metadata": {"name": name}, "kernelLog": []}
        (tmp_path / f"host-{name}.json").write_text(json.dumps(facts))
    assert files.read(str(tmp_path)).missing == []


def test_an_own_archive_says_itself_what_is_missing(tmp_path: Path) -> None:
    own = Missing("events of the cluster", "not allowed", "ask")
    write(Snapshot.of([POD, CRASHING], missing=[own]), str(tmp_path / "a.tar.gz"))
    (found,) = files.read(str(tmp_path / "a.tar.gz")).missing
    assert (found.what, found.why) == (own.what, own.why)
    assert found.how == 'collect it again; the archive says how: "ask"'  # not an order of whoever wrote the archive


def test_without_nodes_nobody_says_that_all_is_well(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.dump(POD))
    report = diagnose(files.read(str(tmp_path / "x.yaml")), strict=True)
    said = as_text(report)
    assert report.exit_code == 2
    assert "Nothing is wrong" not in said
    assert "can't be judged: why pods are Pending: ml/train" in said
    (tmp_path / "x.yaml").write_text(yaml.dump(POD) + NODES)
    assert "can't be judged" not in as_text(diagnose(files.read(str(tmp_path / "x.yaml")), strict=True))
