"""A container's lifecycle hooks: commands in it, and pauses. A stand-in has nothing to run them in and passes them.

Hooks that are HTTP requests go to other pods or to the container itself, over a network that simulated nodes don't
have; they are passed, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from kgpu.kube.port import Object
from kgpu.lab.nodes.runtime import Running, StandIn

POST_START: Final = "postStart"
PRE_STOP: Final = "preStop"
_LOOK_S: Final = 0.2
FAILED_POST_START: Final = "FailedPostStartHook"  # the Event's reason, and what its container is ended for


async def run(container: Object, name: str, running: Running, seconds: float) -> bool:
    """Run the hook of that name if there is one, for ``seconds`` at most; False when it failed."""
    hook: Object = (container.get("lifecycle") or {}).get(name) or {}
    if isinstance(running, StandIn):
        return True
    try:
        if "exec" in hook:
            code, _ = await running.execute(hook["exec"].get("command") or [], seconds)
            return code == 0
        if "sleep" in hook:
            await asyncio.sleep(min(float(hook["sleep"].get("seconds") or 0), seconds))
    except (TimeoutError, OSError):
        return False
    return True


async def run_until(ended: Callable[[], bool], container: Object, name: str, running: Running) -> bool:
    """As ``run``, for as long as it takes; given up, and passed, once ``ended`` says that the pod is to go."""
    task = asyncio.create_task(run(container, name, running, math.inf))
    try:
        while not ended():
            done, _ = await asyncio.wait({task}, timeout=_LOOK_S)
            if done:
                return task.result()
        return True
    finally:
        task.cancel()
