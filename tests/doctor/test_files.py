"""Files: lists, folders, archives and must-gather folders give the same; hostile ones give an error or a gap."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.doctor import archive
from kgpu.doctor.plan import diagnose
from kgpu.doctor.sources import described, files
from tests.budget import tries
from tests.doctor.example import Example, all_examples

EXAMPLES = {one.name: one for one in all_examples()}
DESCRIBED = """Name:               gpu-7
Roles:              <none>
Labels:             kubernetes.io/hostname=gpu-7
                    nvidia.com/gpu.present=true
Annotations:        example.com/설명: 학습용
CreationTimestamp:  Thu, 01 Jan 2026 00:00:00 +0000
Taints:             nvidia.com/gpu=present:NoSchedule
                    gone:NoExecute
Unschedulable:      true
Conditions:
  Type             Status  LastHeartbeatTime                 LastTransitionTime                Reason              Message
  ----             ------  -----------------                 ------------------                ------              -------
  Ready            False   Thu, 01 Jan 2026 10:00:00 +0000   Thu, 01 Jan 2026 09:00:00 +0900   KubeletNotReady     PLEG is not  healthy
Capacity:
  cpu:             8
  nvidia.com/gpu:  4
Allocatable:
  cpu:             8
  nvidia.com/gpu:  3
System Info:
  Kernel Version:             6.8.0-40-generic
  Container Runtime Version:  containerd://2.1.4
Non-terminated Pods:          (0 in total)
  Namespace                   Name


Name:               gpu-8
Taints:             <none>
Unschedulable:      false
"""


def ids(path: Path | str) -> list[str]:
    return [one.id for one in diagnose(files.read(str(path)), strict=True).findings]


def list_of(example: Example) -> dict[str, Any]:
    items = [one for one in example.broken if one["kind"] not in ("PodLog", "HostFacts")]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def tar(path: Path, members: dict[str, bytes], *, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def test_yaml_json_folder_and_archive_say_the_same(tmp_path: Path) -> None:
    wanted = list_of(EXAMPLES["SCH-08"])
    text = yaml.safe_dump(wanted, sort_keys=False)
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "a.json").write_text(json.dumps(wanted))
    (tmp_path / "many.yml").write_text("---\n".join(yaml.safe_dump(one) for one in wanted["items"]))
    (tmp_path / "dump.gz").write_bytes(gzip.compress(text.encode()))
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    for number, one in enumerate(wanted["items"]):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(one))
    tar(tmp_path / "a.tgz", {"x/objects.json": json.dumps(wanted).encode()})
    tar(tmp_path / "a.tar", {"objects.yaml": text.encode()}, mode="w")
    for name in ("a.yaml", "a.json", "many.yml", "dump.gz", "folder", "a.tgz", "a.tar"):
        assert ids(tmp_path / name)[0] == "SCH-08", name


@pytest.mark.parametrize("name", ["DPL-01", "KRN-03", "HW-01", "DRA-05"])
def test_an_archive_keeps_all_that_rules_need(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    before = example.snapshot(example.broken)
    archive.write(before, str(tmp_path / "a.tar.gz"))
    assert os.stat(tmp_path / "a.tar.gz").st_mode & 0o077 == 0
    assert [one.name for one in tmp_path.iterdir()] == ["a.tar.gz"]
    after = files.read(str(tmp_path / "a.tar.gz"))
    told = diagnose(after, strict=True)
    assert [(one.id, one.cause) for one in told.findings] == [
        (one.id, one.cause) for one in diagnose(before, strict=True).findings
    ]


def test_a_described_node() -> None:
    first, second = described.nodes(DESCRIBED)
    assert first["metadata"]["labels"] == {"kubernetes.io/hostname": "gpu-7", "nvidia.com/gpu.present": "true"}
    assert first["metadata"]["annotations"] == {"example.com/설명": "학습용"}
    assert first["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert first["spec"]["taints"] == [
        {"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "present"},
        {"key": "gone", "effect": "NoExecute"},
    ]
    assert first["spec"]["unschedulable"] is True
    assert first["status"]["capacity"]["nvidia.com/gpu"] == "4"
    assert first["status"]["allocatable"]["nvidia.com/gpu"] == "3"
    (ready,) = first["status"]["conditions"]
    assert ready["status"] == "False"
    assert ready["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert ready["message"] == "PLEG is not  healthy"
    assert first["status"]["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.1.4"
    assert second["metadata"]["name"] == "gpu-8"
    assert second["spec"] == {"taints": [], "unschedulable": False}


@tries(60)
@given(st.text(st.sampled_from("Name:Conditions Taints\n\t =:gpu\x00한")))
def test_any_text_is_described_nodes(text: str) -> None:
    for node in described.nodes(text):
        assert node["metadata"]["name"]


def test_a_must_gather_folder(tmp_path: Path) -> None:
    """Its nodes are a text, its pods YAML, its logs files named after pods."""
    example = EXAMPLES["DPL-01"]
    objects = [one for one in example.broken if one["kind"] not in ("Node", "PodLog")]
    (tmp_path / "gpu_operand_pods.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    (tmp_path / "gpu_nodes.descr").write_text(DESCRIBED)
    (tmp_path / "gpu_operand_ds_x.descr").write_text("Name: no-node\n")
    (tmp_path / "plugin-a.log").write_text("No devices found. Waiting indefinitely.\n")
    bug = b"[1.0] NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.\n"
    (tmp_path / "nvidia-bug-report_gpu-7.log.gz").write_bytes(gzip.compress(bug))
    (tmp_path / "must-gather.log").write_text("+ kubectl get\n")
    (tmp_path / "gpu_device_usage_gpu-7.log").write_text("nvidia-smi\n")
    found = files.read(str(tmp_path))
    assert set(found.nodes) == {"gpu-7", "gpu-8"}
    assert found.nodes["gpu-7"].allocatable("nvidia.com/gpu") == 3
    assert found.logs[("gpu-operator", "plugin-a")][0].lines == ("No devices found. Waiting indefinitely.",)
    assert "79" in (found.hosts["gpu-7"].kernel_log or ("",))[0]


def test_the_object_itself_beats_its_description(tmp_path: Path) -> None:
    node = {"kind": "Node", "metadata": {"name": "gpu-7"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    (tmp_path / "a_nodes.yaml").write_text(yaml.safe_dump(node))
    (tmp_path / "gpu_nodes.descr").write_text(DESCRIBED)
    assert files.read(str(tmp_path)).nodes["gpu-7"].allocatable("nvidia.com/gpu") == 8


def test_hostile_members_do_no_harm(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (tmp_path / "outside.yaml").write_text("kind: Node\nmetadata: {name: outside}\n")
    path = place / "evil.tar.gz"
    node = json.dumps({"kind": "Node", "metadata": {"name": "good"}}).encode()
    with tarfile.open(path, "w:gz") as file:
        for name in ("../../escape.json", "/etc/absolute.json", "a\x1b[31m\n.json"):
            info = tarfile.TarInfo(name)
            info.size = len(node)
            file.addfile(info, io.BytesIO(node))
        for kind, target in ((tarfile.SYMTYPE, str(tmp_path / "outside.yaml")), (tarfile.LNKTYPE, "../outside.yaml")):
            info = tarfile.TarInfo("link.yaml")
            info.type, info.linkname = kind, target
            file.addfile(info)
        for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE):
            info = tarfile.TarInfo("device.yaml")
            info.type = kind
            file.addfile(info)
        broken = b"{" * 100_000
        info = tarfile.TarInfo("deep.json")
        info.size = len(broken)
        file.addfile(info, io.BytesIO(broken))
    found = files.read(str(path))
    assert set(found.nodes) == {"good"}
    assert any("deep.json" in gap.what for gap in found.missing)
    assert [one.name for one in place.iterdir()] == ["evil.tar.gz"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "outside.yaml"]


def test_a_bomb_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TOTAL", 1 << 20)
    node = json.dumps({"kind": "Node", "metadata": {"name": "good"}}).encode()
    path = tar(tmp_path / "bomb.tar.gz", {"a.json": node, "b.json": b" " * (8 << 20)})
    found = files.read(str(path))
    assert set(found.nodes) == {"good"}
    assert any("more than" in gap.why for gap in found.missing)


def test_a_torn_archive_gives_what_it_has(tmp_path: Path) -> None:
    node = json.dumps({"kind": "Node", "metadata": {"name": "good"}}).encode()
    noise = os.urandom(1 << 20)
    whole = tar(tmp_path / "a.tar.gz", {"a.json": node, "b.log": noise}).read_bytes()
    (tmp_path / "torn.tar.gz").write_bytes(whole[: len(whole) // 2])
    found = files.read(str(tmp_path / "torn.tar.gz"))
    assert set(found.nodes) == {"good"}
    assert any("the rest of" in gap.what for gap in found.missing)


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("kind: Node\nmetadata: {name: outside}\n")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "good.yaml").write_text("kind: Node\nmetadata: {name: good}\n")
    assert set(files.read(str(folder)).nodes) == {"good"}


def test_a_broken_item_spoils_no_other(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- kind: Node\n  metadata: {name: a}\n- kind: [\n- kind: Node\n  metadata: {name: b}\n"
    (tmp_path / "a.yaml").write_text(text)
    found = files.read(str(tmp_path / "a.yaml"))
    assert set(found.nodes) == {"a", "b"}
    assert any("line 6" in gap.what for gap in found.missing)


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8b", b"\x1f\x8bxxxxxxxx", b"\x00" * 600, b"hello", b"[]", b"{}", b"a: &a [*a]", b"\xff\xfe"]
)
def test_what_is_no_cluster_is_an_explained_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        files.read(str(tmp_path / "x.yaml"))
    assert caught.value.remedy


@tries(60)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x"
    for head in (b"", b"\x1f\x8b\x08", b"kind: Node\nmetadata: {name: a}\n---\n"):
        path.write_bytes(head + data)
        refused = _refusal(path)
        assert refused is None or refused.expected


def _refusal(path: Path) -> ConfigError | None:
    try:
        files.read(str(path))
    except ConfigError as error:
        return error
    return None


def test_the_kubelets_word_that_a_log_is_gone_is_no_line_of_it() -> None:
    gone = b"unable to retrieve container logs for containerd://c2043a0d8407"
    assert files.lines(gone) == files.lines(gone + b"\n") == ()
    assert len(files.lines(gone + b"\nand more\n")) == 2


def test_lists_within_lists_end_and_spoil_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind": "List", "items": [' + "[" * 500 + "]" * 500 + "]}")
    (tmp_path / "b.json").write_text('{"kind": "Node", "metadata": {"name": "gpu-1"}}')
    found = files.read(str(tmp_path))
    assert list(found.nodes) == ["gpu-1"]
    assert any("lists within each other" in gap.why for gap in found.missing)


def test_what_takes_a_files_place_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder's owner may put a link or a pipe there after it was looked at."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    plain = (tmp_path / "secret").lstat()
    monkeypatch.setattr(files.os, "lstat", lambda _: plain)
    assert files._plain_file(str(tmp_path / "pipe"), 10) is None
    with pytest.raises(OSError, match="symbolic link"):
        files._plain_file(str(tmp_path / "link"), 10)
    with pytest.raises(ValueError, match="too large"):
        files._plain_file(str(tmp_path / "secret"), 0)
    assert files._plain_file(str(tmp_path / "secret"), 1) == b"x"
