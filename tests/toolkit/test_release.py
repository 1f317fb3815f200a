"""Leaving: every engine that was configured is undone, also by a process that was told nothing; failures wait longer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.toolkit.engine.model import EngineOutcome
from kgpu.toolkit.fake_engines import PLACE, FakeEngines
from kgpu.toolkit.memory import ENGINES_FILE, FOLDER, Configured, EngineMemory
from kgpu.toolkit.release import release

OTHER = dataclasses.replace(PLACE, config="/etc/other/config.toml")


class Undo:
    def __init__(self) -> None:
        self.engines = FakeEngines()
        self.done: list[str] = []

    async def __call__(self, engine: Configured) -> EngineOutcome:
        outcome = await self.engines.unconfigure(engine.place)
        self.done.append(engine.place.config)
        return outcome


def test_what_is_remembered_is_read_again(tmp_path: Path) -> None:
    memory = EngineMemory(tmp_path)
    place = dataclasses.replace(PLACE, version=(2, 1, 4), oci=("/usr/bin/runc",))
    memory.put(Configured(place=place, restart="systemd"))
    memory.put(Configured(place=OTHER))
    memory.put(Configured(place=place, restart="none"))
    assert EngineMemory(tmp_path).engines() == (Configured(place=OTHER), Configured(place=place, restart="none"))


@pytest.mark.parametrize("content", [b"", b"{", b"[{}]", b'[{"place": 3}]', b"[" * 100_000, b"\xff"])
def test_a_memory_that_can_not_be_read_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / ENGINES_FILE).write_bytes(content)
    assert EngineMemory(tmp_path).engines() == ()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_every_engine_is_given_back_and_nothing_is_left(tmp_path: Path) -> None:
    memory, undo = EngineMemory(tmp_path), Undo()
    memory.put(Configured(place=PLACE))
    memory.put(Configured(place=OTHER))
    (tmp_path / FOLDER / "containerd-0123").mkdir()
    (tmp_path / FOLDER / "containerd-0123" / "lock").touch()
    await release(memory, undo)
    assert undo.done == [PLACE.config, OTHER.config]
    assert names_in(tmp_path) == []
    await release(memory, undo)
    assert len(undo.done) == 2


async def test_one_that_fails_stays_remembered_and_the_others_do_not_wait(tmp_path: Path) -> None:
    memory, undo = EngineMemory(tmp_path), Undo()
    memory.put(Configured(place=PLACE))
    undo.engines.fail = "containerd did not come back"
    now = 1_000_000.0
    for _ in range(5):
        with pytest.raises(HostError):
            await release(memory, undo, lambda: now)
    assert memory.engines()[0].tries == 1
    memory.put(Configured(place=OTHER))
    undo.engines.fail = ""
    with pytest.raises(HostError, match="tried again later"):
        await release(memory, undo, lambda: now)
    assert undo.done == [OTHER.config]
    await release(memory, undo, lambda: now + 11)
    assert undo.done == [OTHER.config, PLACE.config]


async def test_a_clock_that_was_set_back_does_not_stop_it(tmp_path: Path) -> None:
    memory, undo = EngineMemory(tmp_path), Undo()
    memory.put(Configured(place=PLACE, tries=3, due=1_000_000.0))
    await release(memory, undo, lambda: 1000.0)
    assert undo.done == [PLACE.config]
