"""The link follows label and text, is exchanged in one step, never leads out of the folder, and survives every mistake."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.agent import config_manager
from kgpu.agent.config_manager import ConfigManager, ConfigManagerSettings, run
from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError, HostError
from kgpu.formats.config_choice import Fallback
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES

NODE, LABEL = "gpu-1", "example.org/config"


class Place:
    """A mounted ConfigMap, a volume for the link, and what is told to whom."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.target = folder / "available", folder / "config" / "config.yaml"
        self.source.mkdir()
        self.target.parent.mkdir()
        self.version = 0
        self.mount(default="d", t4="t")
        self.said: list[Advice] = []
        self.signals: list[tuple[int, str]] = []
        self.pids: tuple[int, ...] = (42,)
        monkeypatch.setattr(config_manager.processes, "named", lambda _name: self.pids)
        monkeypatch.setattr(config_manager.processes, "tell", self._told)

    def _told(self, pids: tuple[int, ...], number: int, name: str) -> tuple[int, ...]:
        if pids:
            self.signals.append((number, name))
        return pids

    def mount(self, **texts: str) -> None:
        """As the kubelet does: a new folder, and a link to it that is exchanged."""
        self.version += 1
        made = self.source / f"..{self.version}"
        made.mkdir()
        for name, text in texts.items():
            (made / name).write_text(text)
            with contextlib.suppress(FileExistsError):
                (self.source / name).symlink_to(f"..data/{name}")
        (self.source / "..new").symlink_to(made.name)
        (self.source / "..new").replace(self.source / "..data")

    def settings(self, **changes: Any) -> ConfigManagerSettings:
        given = {"node": NODE, "label": LABEL, "source": self.source, "target": self.target, **changes}
        return ConfigManagerSettings(**{"fallbacks": (Fallback.NAMED,), **given})

    def manager(self, **changes: Any) -> ConfigManager:
        return ConfigManager(self.settings(**changes), self.said.append)

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self.said]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_label_default_fallback_and_nothing(place: Place) -> None:
    for changes, label, leads_to in (
        ({}, "t4", place.source / "t4"),
        ({"default": "t4"}, "", place.source / "t4"),
        ({}, "", place.source / "default"),
        ({"fallbacks": (Fallback.EMPTY,)}, "", Path("/dev/null")),
    ):
        place.manager(**changes).apply(label)
        assert os.readlink(place.target) == str(leads_to)
    assert [path.name for path in place.target.parent.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("label", ["../secret", "..data", "..1", "/etc/passwd", "t4/", ".", "t5", "..data/t4"])
def test_a_label_that_names_no_config_of_the_folder_changes_nothing(place: Place, label: str) -> None:
    (place.source.parent / "secret").write_text("s")
    manager = place.manager()
    manager.apply("t4")
    with pytest.raises(ConfigError, match=LABEL):
        manager.apply(label)
    assert os.readlink(place.target) == str(place.source / "t4")


def test_only_what_is_news_is_told(place: Place) -> None:
    manager = place.manager(signal=10, process="p")
    manager.apply("t4")
    manager.apply("t4")
    assert place.signals == [(10, "p")]
    place.mount(default="d", t4="other")
    manager.apply("t4")
    place.mount(default="x", t4="other")
    manager.apply("t4")
    assert place.signals == [(10, "p")] * 2, "the text of another config is no news"
    place.manager(signal=10).apply("t4")
    assert len(place.signals) == 2, "a link that was there is what the process has read"


def test_nobody_is_told_where_that_is_switched_off(place: Place) -> None:
    place.manager(signal=None).apply("t4")
    assert (place.signals, place.reasons) == ([], ["ConfigChosen"])


def test_a_process_that_is_not_there_is_said_and_holds_nothing_up(place: Place) -> None:
    place.pids = ()
    place.manager().apply("t4")
    assert place.target.read_text() == "t"
    assert place.reasons == ["ConfigChosen", "ProcessNotTold"]
    assert "shareProcessNamespace" in place.said[-1].remedy


def test_a_dangling_link_and_a_plain_file_are_replaced(place: Place) -> None:
    place.target.symlink_to(place.source / "gone")
    place.manager().apply("t4")
    assert place.target.read_text() == "t"
    place.target.unlink()
    place.target.write_text("by hand")
    place.manager().apply("t4")
    assert os.readlink(place.target) == str(place.source / "t4")


@pytest.mark.parametrize("broken", ["source", "target"])
def test_folders_that_can_t_be_used_are_errors_with_the_flag_to_correct(place: Place, broken: str) -> None:
    with pytest.raises(HostError) as refused:
        place.manager(**{broken: Path("/nowhere/at/all")}).apply("")
    assert {"source": "CONFIG_FILE_SRCDIR", "target": "CONFIG_FILE_DST"}[broken] in refused.value.remedy


def node(label: str = "") -> dict[str, Any]:
    return {"metadata": {"name": NODE, "labels": {LABEL: label} if label else {}}}


@contextlib.asynccontextmanager
async def following(place: Place, api: FakeApi) -> AsyncIterator[None]:
    task = asyncio.create_task(run(place.manager(), place.settings(), api, once=False))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is what others write
            await asyncio.sleep(0.01)


async def test_nothing_is_chosen_before_the_node_is_known(place: Place) -> None:
    api = FakeApi()
    api.put(NODES, node("t4"))
    await run(place.manager(), place.settings(), api, once=True)
    assert place.target.read_text() == "t"
    assert len(place.signals) == 1, "and not the config of a node without a label first"


async def test_once_a_label_that_names_nothing_is_an_error(place: Place) -> None:
    api = FakeApi()
    api.put(NODES, node("t5"))
    with pytest.raises(ConfigError, match="t5"):
        await run(place.manager(), place.settings(), api, once=True)
    assert not place.target.exists()


async def test_a_node_that_can_t_be_read_is_no_refused_config(place: Place) -> None:
    api = FakeApi()
    api.refuse[("list", "nodes")] = 403
    async with following(place, api):
        await until(lambda: place.reasons)
    assert set(place.reasons) == {"NodeUnknown"}
    assert not place.target.exists()


async def test_it_follows_label_and_text_and_says_a_mistake_once(place: Place) -> None:
    api = FakeApi()
    api.put(NODES, node())
    async with following(place, api):
        await until(lambda: place.target.exists() and place.target.read_text() == "d")
        api.put(NODES, node("t4"))
        await until(lambda: place.target.read_text() == "t")
        place.mount(default="d", t4="T")
        await until(lambda: len(place.signals) == 3)
        api.put(NODES, node("t5"))
        await until(lambda: place.reasons[-1] == "ConfigRefused")
        place.mount(default="D", t4="T")
        api.put(NODES, node("t4"))
        api.put(NODES, node())
        await until(lambda: place.target.read_text() == "D")
    assert place.reasons.count("ConfigRefused") == 1
