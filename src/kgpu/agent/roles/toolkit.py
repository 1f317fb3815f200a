"""The role ``toolkit``: CDI specs, the container engine, links to device nodes and the NRI plugin."""

from __future__ import annotations

from typing import Final

from kgpu.agent.host import Host, Role
from kgpu.agent.options import AgentOptions
from kgpu.base.supervise import RoleHandle
from kgpu.kube.port import KubeApi


async def _toolkit(host: Host, handle: RoleHandle) -> None:
    from kgpu.agent import toolkit_parts

    await toolkit_parts.toolkit(host, handle)


async def _withdraw(api: KubeApi, options: AgentOptions) -> None:
    """Remove what the toolkit has put on this node. Raises HostError."""
    from kgpu.agent import toolkit_parts

    await toolkit_parts.withdraw(api, options)


ROLE: Final = Role(
    "toolkit",
    _toolkit,
    aliases=("container-toolkit",),
    withdraw=_withdraw,
    finish=12.0,  # a container engine may have to be restarted
)
