"""Plays the stories of devices on real programs, and writes how they end to ``device_stories.json``.

``python -m tests.lab.real.record_device_stories gated`` plays those of binding conditions and DeviceTaintRules, and
writes ``gated_stories.json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kgpu.kube.client import connect
from tests.lab.embedded.scheduler import device_play, gated_stories
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


async def play_gated(plane: gated.Gated) -> dict[str, Any]:
    """How the stories behind more gates end."""
    plane.start_controllers("--controllers=*,-node-lifecycle-controller")
    plane.start_scheduler(binding_conditions=True)
    api = connect(str(plane.kubeconfig))
    kinds = {**device_play.KINDS, **device_play.GATED}
    try:
        return await device_play.play_all(api, stories=gated_stories.STORIES, kinds=kinds)
    finally:
        await api.close()


def main(arguments: Sequence[str]) -> None:
    behind = arguments == ["gated"]
    with tempfile.TemporaryDirectory() as folder, gated.running(Path(folder), taint_rules=behind) as programs:
        ends = asyncio.run(play_gated(programs) if behind else play(programs, {}))
    file = gated_stories.SAID if behind else device_play.SAID
    file.write_text(json.dumps(ends, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
