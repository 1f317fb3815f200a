"""Every scenario on real Kubernetes; and the embedded lab tells the same story, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.scenarios.conform import compare
from tests.lab.played import Played, check_on_embedded, stories, wrong


@pytest.mark.parametrize("story", stories())
def test_story(story: str, gpus: Any, played: Played) -> None:
    assert not wrong(played.on(gpus.lab, story)), gpus.lab.log_tail("kgpu-agent", 40)


@pytest.mark.parametrize("story", stories())
def test_both_labs_say_the_same(story: str, gpus: Any, embedded: EmbeddedLab, played: Played) -> None:
    found = compare(check_on_embedded(embedded, played, story), played.on(gpus.lab, story))
    assert not found, "\n".join(line for one in found for line in (f"{one.step}: $ {one.command}", *one.lines))
