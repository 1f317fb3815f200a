"""Every scenario, and every kubectl command of ``tests/lab/kubectl``, on the embedded lab."""

from __future__ import annotations

import pytest
from lab.played import Played, stories, wrong

from kgpu.lab import reset
from kgpu.lab.embedded.lab import EmbeddedLab


@pytest.mark.timeout(300)
@pytest.mark.parametrize("story", stories())
def test_story(story: str, embedded: EmbeddedLab, played: Played) -> None:
    result = played.on(embedded, story)
    assert not wrong(result), embedded.log_tail("server", 20)
    assert result.steps
    assert reset.leftovers(embedded) == []
