"""No secret comes out: in no form of output, in no archive, wherever in a cluster or on a host it was planted."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest
from doctor.planted import cluster_with, log_with, secrets_of
from doctor.test_live import RESOURCES
from hypothesis import given, settings
from hypothesis import strategies as st

from kgpu.doctor import archive, secrets
from kgpu.doctor.host_facts import File, HostFacts, encode
from kgpu.doctor.kinds import Log
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_json, as_sarif, as_text, as_yaml
from kgpu.doctor.rules import all_rules
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import host, live
from kgpu.doctor.sources.files import lines, read
from kgpu.host.engines.paths import HostPaths
from kgpu.kube.fake import FakeApi

SEEDS = st.text("abcdefghkmnpqrstuvwxyzABCDEFGHKMNPQRSTUVWXYZ23456789", min_size=6, max_size=16)


def said_of(snapshot: Snapshot, folder: Path) -> str:
    """Everything that ever leaves: each form of output, and the unpacked archive."""
    report = diagnose(snapshot, strict=True)
    forms = [as_text(report), as_json(report), as_yaml(report), as_sarif(report, all_rules())]
    archive.write(snapshot, str(folder / "a.tar.gz"))
    return "\n".join(forms) + gzip.decompress((folder / "a.tar.gz").read_bytes()).decode("utf-8", "replace")


def leaks(text: str, found: dict[str, str]) -> list[str]:
    return [place for place, secret in found.items() if secret in text]


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_planted_secrets_never_come_out(tmp_path_factory: pytest.TempPathFactory, seed: str) -> None:
    found = secrets_of(seed)
    snapshot = Snapshot.of(cluster_with(found))
    snapshot.add_log(Log(namespace="ml", pod="train", container="main", lines=lines(log_with(found))))
    text = said_of(snapshot, tmp_path_factory.mktemp("said"))
    assert leaks(text, found) == []
    assert "HF_TOKEN" in text, "names of variables stay"


async def test_nor_from_a_live_cluster_nor_from_an_archive_of_others(tmp_path: Path) -> None:
    found = secrets_of("Live1234")
    api = FakeApi()
    for one in cluster_with(found):
        if one["kind"] in RESOURCES:
            api.put(RESOURCES[one["kind"]], one)

    class Logs:
        async def logs(self, *_: object, **__: object) -> bytes:
            return log_with(found)

    snapshot = await live.collect(api, logs=Logs())
    assert leaks(said_of(snapshot, tmp_path), found) == []
    assert not snapshot.kinds.get("Secret"), "Secrets are not even asked for"
    # An archive that somebody else made, without cleaning anything.
    import io
    import json

    with tarfile.open(tmp_path / "raw.tar.gz", "w:gz") as file:
        for name, data in (
            ("objects/all.json", json.dumps({"kind": "List", "items": cluster_with(found)}).encode()),
            ("logs/ml/train/main.log", log_with(found)),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    assert leaks(said_of(read(str(tmp_path / "raw.tar.gz")), tmp_path), found) == []


def test_nor_from_a_hosts_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text(
        'version = 2\n[plugins."x".registry.configs."r".auth]\n  username = "u"\n  password = "Zq-hunter2-toml"\n'
    )
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text("root=/dev/sda1 luks.password=Zq-hunter2-cmd\n")
    facts = host.gather(HostPaths.at(str(root)), node="gpu-1")
    text = said_of(Snapshot.of([encode(facts)]), tmp_path)
    assert 'username = \\"u\\"' in text
    assert "Zq-hunter2" not in text


def test_host_facts_of_another_version_are_cleaned_too(tmp_path: Path) -> None:
    facts = HostFacts(
        node="gpu-1",
        files={"/etc/docker/daemon.json": File(text='{"token": "Zq-hunter2-file"}')},
        command_line="x password=Zq-hunter2-cmd",
        kernel_log=("NVRM: token=Zq-hunter2-log",),
    )
    assert "Zq-hunter2" not in said_of(Snapshot.of([encode(facts)]), tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_cleaning_is_total_and_settles(text: str) -> None:
    once = secrets.cleaned(text)
    assert secrets.cleaned(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "NVRM: Xid (PCI:0000:03:00): 79, pid=1, GPU has fallen off the bus.",
        "unknown device: nvidia.com/gpu=GPU-3b1f1c1e-0000-1111-2222-333344445555",
        "Failed to pull image nvcr.io/nvidia/driver:570.86.15-ubuntu24.04",
        "secretName: pull-me is not there",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert secrets.cleaned(text) == text
