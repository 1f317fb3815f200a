"""Which lab is meant where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.lab import common, folders


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return common.labs_root()


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / common.EMBEDDED_STATE).touch()


@pytest.mark.parametrize(
    ("there", "name"),
    [((), "lab"), (("second",), "second"), (("lab", "second"), "lab")],
    ids=["none", "one", "several"],
)
def test_the_only_one_or_the_usual_one(labs: Path, there: tuple[str, ...], name: str) -> None:
    make(labs, *there)
    assert folders.meant({}) == (name, None)


def test_of_several_none_is_guessed(labs: Path) -> None:
    make(labs, "first", "second")
    with pytest.raises(LabError, match="2 labs") as caught:
        folders.meant({})
    assert "first, second" in caught.value.expected
    assert "--name" in caught.value.remedy


def test_the_one_that_the_shell_is_about(labs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "own"
    make(tmp_path, "own")
    make(labs, "first", "second")
    second = f"{labs / 'second' / 'kubeconfig'}"
    assert folders.meant({"KUBECONFIG": second}) == ("second", None)
    assert folders.meant({"KUBECONFIG": f"{second}:/root/.kube/config"}) == ("second", None)
    assert folders.meant({"KUBECONFIG": f"{elsewhere / 'kubeconfig'}"}) == ("lab", elsewhere)
    assert folders.meant({"KUBECONFIG": second, "KGPU_LAB": "first"}) == ("first", None)
    assert folders.meant({"KGPU_LAB": str(elsewhere)}) == ("lab", elsewhere)
    with pytest.raises(LabError):
        folders.meant({"KUBECONFIG": "/etc/kubernetes/admin.conf"})


def test_a_new_lab_is_named_by_the_variable_alone(labs: Path) -> None:
    make(labs, "second")
    assert folders.named({"KUBECONFIG": str(labs / "second" / "kubeconfig")}) is None
    assert folders.named({"KGPU_LAB": "third"}) == ("third", None)
