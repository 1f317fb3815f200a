"""A lab's context in the user's own kubeconfig: what is there stays, and what was added goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.base.errors import LabError
from kgpu.lab import merged_kubeconfig as merging

SERVER = "https://127.0.0.1:4711"


def config(name: str, server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority": f"{name}.crt"}}],
        "users": [{"name": name, "user": {"token": "secret", "client-key": f"/etc/{name}.key"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "ml"}}],
    }


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    path = tmp_path / "lab" / "kubeconfig"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(config("admin", SERVER)))
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own" / "config"
    path.parent.mkdir()
    path.write_text(
        yaml.safe_dump({**config("work", "https://work:6443"), "extensions": [{"name": "x", "extension": 1}]})
    )
    path.chmod(0o640)
    return path


def load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def test_what_is_there_stays_and_what_was_added_goes(lab: Path, own: Path) -> None:
    before = load(own)
    assert merging.merge(own, lab, "mine") == "kgpu-mine"
    merging.merge(own, lab, "mine")  # twice is as good as once
    merged = load(own)
    assert merged["current-context"] == "kgpu-mine"
    assert [one["name"] for one in merged["contexts"]] == ["work", "kgpu-mine"]
    assert merged["contexts"][1]["context"] == {"cluster": "kgpu-mine", "user": "kgpu-mine", "namespace": "ml"}
    cluster = merged["clusters"][1]["cluster"]
    assert cluster == {"server": SERVER, "certificate-authority": str(lab.parent / "admin.crt")}
    assert merged["users"][1]["user"]["client-key"] == "/etc/admin.key"
    assert own.stat().st_mode & 0o777 == 0o640
    assert not merging.withdraw(own, "mine", "https://127.0.0.1:1"), "somebody else's of that name"
    assert merging.withdraw(own, "mine", SERVER)
    assert load(own) == {**before, "current-context": ""}
    assert not merging.withdraw(own, "mine", SERVER)
    assert os.listdir(own.parent) == ["config"]


def test_whose_current_context_is_another_keeps_it(lab: Path, own: Path) -> None:
    merging.merge(own, lab, "mine")
    own.write_text(own.read_text().replace("current-context: kgpu-mine", "current-context: work"))
    merging.withdraw(own, "mine", SERVER)
    assert load(own)["current-context"] == "work"


def test_a_file_that_is_not_there_is_made_for_its_user_alone(lab: Path, tmp_path: Path) -> None:
    path = tmp_path / "home" / ".kube" / "config"
    merging.merge(path, lab, "mine")
    assert load(path)["current-context"] == "kgpu-mine"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not merging.withdraw(tmp_path / "nowhere", "mine", SERVER)


def test_a_link_stays_one(lab: Path, own: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(own)
    merging.merge(link, lab, "mine")
    assert link.is_symlink()
    assert load(own)["current-context"] == "kgpu-mine"


@pytest.mark.parametrize(
    "text", ["a: [", "[]", "clusters: 1", "clusters: [{}]", "clusters: [1]", "contexts: [{name: 7}]"]
)
def test_a_file_that_is_no_kubeconfig_is_told_and_stays(text: str, lab: Path, own: Path) -> None:
    own.write_text(text)
    with pytest.raises(LabError) as caught:
        merging.merge(own, lab, "mine")
    assert str(own) in caught.value.what
    assert own.read_text() == text
    assert os.listdir(own.parent) == ["config"]


def test_somebody_who_is_changing_it_is_not_disturbed(lab: Path, own: Path) -> None:
    before = own.read_text()
    lock = own.with_name("config.lock")
    lock.touch()
    with pytest.raises(LabError, match="another program"):
        merging.merge(own, lab, "mine")
    assert own.read_text() == before
    assert lock.exists()


def test_which_file_is_the_users_own(lab: Path, own: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert merging.users_own(home, lab) == tmp_path / ".kube" / "config"
    assert merging.users_own({**home, "KUBECONFIG": str(lab)}, lab) == tmp_path / ".kube" / "config"
    assert merging.users_own({**home, "KUBECONFIG": f"{lab}:{own}"}, lab) == own
