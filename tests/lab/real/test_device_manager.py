"""The real kubelet treats device plugins as the fake one does, which the other tests are held by."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kubelet import followers


def test_the_end_of_a_plugin_that_was_followed_drops_its_follower(gpus: Any) -> None:
    asyncio.run(followers.the_first_one_ends(gpus.device_plugin_dir()))
