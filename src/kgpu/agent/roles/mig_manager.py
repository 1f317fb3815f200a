"""The role ``mig-manager``: cuts this node's GPUs into the slices that its label names."""

from __future__ import annotations

import asyncio
from typing import Final

from kgpu.agent.host import Host, Role
from kgpu.base.supervise import RoleHandle


async def _mig_manager(host: Host, handle: RoleHandle) -> None:
    del host
    handle.running("no layout is applied")
    await asyncio.Event().wait()


ROLE: Final = Role("mig-manager", _mig_manager, aliases=("nvidia-mig-manager",))
