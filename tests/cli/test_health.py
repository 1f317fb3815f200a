"""``kgpu health``: verdicts, history, a person's word; exit codes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from kgpu.cli import health as command
from kgpu.cli.main import main
from kgpu.health.history import HealthHistory, Remembered
from kgpu.health.node import HistoryNote
from kgpu.hw.verdicts import GpuVerdict, VerdictFile, verdicts_path

LOST = GpuVerdict(
    uuid="GPU-aaaaaaaa-0000", index=0, action="reboot", withdraws=True, what="Xid 79: lost", remedy="reboot it",
    evidence=("Xid 79: lost", "more"), since=1.8e9, severity="error",
)  # fmt: skip
WELL = GpuVerdict(uuid="GPU-bbbbbbbb-0000", index=1, what="well")


class Place:
    """A node's folders."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.history = HealthHistory(folder / "state" / "health.db")
        self.file = VerdictFile(verdicts_path(folder, {}))

    def __call__(self, *words: str) -> int:
        return main(["kgpu", "health", *words, "--host-root", str(self.root), "--state-dir", str(self.root / "state")])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("KGPU_RUN_DIR", raising=False)
    return Place(tmp_path)


def test_the_verdicts(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.file.write((LOST, WELL), problems=("kernel log: no",))
    assert place() == 3
    out = capsys.readouterr().out
    assert "GPU 0 GPU-aaaaaaaa-0000: unhealthy, since 2027-01-15T08:00:00Z\n" in out
    assert "  to do     reboot it\n  evidence  Xid 79: lost\n            more\n" in out
    assert "GPU 1 GPU-bbbbbbbb-0000: well\n" in out
    assert "not seen: kernel log: no" in out


@pytest.mark.parametrize(("word", "code"), [("1", 0), ("0", 3), ("GPU-bbbb", 0), (LOST.uuid, 3), ("all", 3)])
def test_one_of_them(place: Place, capsys: pytest.CaptureFixture[str], word: str, code: int) -> None:
    place.file.write((LOST, WELL))
    assert place(word, "-o", "json") == code
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is (code == 0)
    assert len(said["gpus"]) == (2 if word == "all" else 1)


def test_what_can_not_be_answered(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place() == 2
    assert "there are no verdicts" in capsys.readouterr().err
    place.file.write((LOST, WELL))
    assert place("7") == 2
    assert "0 (GPU-aaaaaaaa-0000), 1 (GPU-bbbbbbbb-0000)" in capsys.readouterr().err


def test_the_history(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place("history") == 0
    assert "nothing has happened" in capsys.readouterr().err
    place.history.save(
        Remembered(),
        [
            HistoryNote(at=1.8e9, gpu=LOST.uuid, kind="xid", name="Xid 79", text="off the bus"),
            HistoryNote(at=1.8e9, gpu=WELL.uuid, kind="verdict", name="GPUHealthy", text="GPU 1 is well"),
        ],
    )
    assert place("history") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "2027-01-15T08:00:00Z  GPU-aaaaaaaa-0000  xid      Xid 79: off the bus"
    assert second.endswith("GPU 1 is well")
    place.file.write((LOST, WELL))
    assert place("history", "0", "-o", "json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["Xid 79"]
    assert place("history", "--since", "5 minutes") == 2


class Role(threading.Thread):
    """Does what the health role does with orders."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.taken: list[tuple[str, str, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.01):
            for number, order in self.place.history.orders():
                self.taken.append((order.kind, order.gpu, order.until))
                self.place.history.save(Remembered(), done=[number])


@pytest.fixture
def role(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "WAIT_SECONDS", 300.0)
    thread = Role(place)
    thread.start()
    yield thread
    thread.over.set()
    thread.join()


def test_words_of_people_reach_the_role(place: Place, role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    place.file.write((LOST, WELL))
    assert place("set-healthy", "0") == 0
    assert "GPU-aaaaaaaa-0000" in capsys.readouterr().out
    assert place("maintenance", "on", "all", "--for", "2h") == 0
    assert place("maintenance", "off", "GPU-bbbb") == 0
    kinds = [(kind, gpu) for kind, gpu, _ in role.taken]
    assert kinds == [
        ("healthy", LOST.uuid), ("maintenance", LOST.uuid), ("maintenance", WELL.uuid), ("maintenance", WELL.uuid),
    ]  # fmt: skip
    assert role.taken[-1][2] == 0.0
    assert role.taken[1][2] > 0.0


def test_words_that_nobody_takes_are_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "WAIT_SECONDS", 0.05)
    assert place("set-healthy", "3") == 0
    assert "no health role has taken it" in capsys.readouterr().err
    assert [order.gpu for _, order in place.history.orders()] == ["3"]


@pytest.mark.parametrize("words", [("maintenance", "off", "0", "--for", "1h"), ("set-healthy",), ("maintenance", "on")])
def test_what_makes_no_sense_is_refused(place: Place, words: tuple[str, ...]) -> None:
    assert place(*words) == 2
