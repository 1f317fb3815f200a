"""Plays the stories of devices on real programs, and writes how they end to ``device_stories.json``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kgpu.kube.client import connect
from tests.lab.embedded.scheduler import device_play
from tests.lab.real import gated


async def play(plane: gated.Gated, wanted: Mapping[str, Any], only: Collection[str] = ()) -> dict[str, Any]:
    """How the stories of these names end, all without any. Nodes have no kubelets, and the controller that would find them dead does not run."""
    plane.start_controllers("--controllers=*,-node-lifecycle-controller")
    plane.start_scheduler()
    api = connect(str(plane.kubeconfig))
    try:
        return await device_play.play_all(api, wanted, only)
    finally:
        await api.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, gated.running(Path(folder)) as programs:
        ends = asyncio.run(play(programs, {}))
    device_play.SAID.write_text(json.dumps(ends, indent=1, sort_keys=True) + "\n")
