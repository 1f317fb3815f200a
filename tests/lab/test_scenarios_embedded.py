"""Every scenario, and every kubectl command of ``tests/lab/kubectl``, on the embedded lab.

Where real programs are required, ``tests/lab/real/test_conform.py`` plays each of them there and here and looks at the
same; then one is played here, so that this stays true.
"""

from __future__ import annotations

import os

import pytest

from kgpu.lab.embedded.lab import EmbeddedLab
from tests import on_real
from tests.lab.played import Played, check_on_embedded, stories

REQUIRED = os.environ.get(on_real.REQUIRE) == "1"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("story", stories()[:1] if REQUIRED else stories())
def test_story(story: str, embedded: EmbeddedLab, played: Played) -> None:
    check_on_embedded(embedded, played, story)
