"""Pods with claims on the embedded cluster end as they end on a real one: the same devices, or the same reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.embedded.scheduler import device_play
from tests.lab.embedded.scheduler.device_stories import STORIES, DeviceStory
from tests.lab.embedded.support import whole


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_a_story_ends_as_on_a_real_cluster(story: DeviceStory, tmp_path: Path) -> None:
    wanted = device_play.recorded()[story.name]
    async with whole(tmp_path) as cluster:
        player = device_play.Player(cluster.api)
        await player.prepare()
        assert await player.play(story, wanted) == wanted
