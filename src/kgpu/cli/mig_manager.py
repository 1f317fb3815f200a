"""``nvidia-mig-manager``: the replaced program that cuts a node's GPUs as its label says, with its flags and variables.

In an agent the same is the role ``mig-manager``, which has its changes made by operations where kgpu's operator runs.
This is for pods made for the replaced program: without such an operator it cuts GPUs that nobody uses.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import GoFlagsCommand, check_kubeconfig, run_async
from kgpu.cli._options import help_with_variables, settled
from kgpu.formats.mig_manager_flags import FLAGS, PROCESS, WITHOUT
from kgpu.formats.names import ENV_HOST_ROOT, HOST_ROOT, KUBELET_SOCKET, STATE_DIR
from kgpu.formats.settings import Setting

if TYPE_CHECKING:
    from kgpu.agent.options import AgentOptions

PROGRAM: Final = "nvidia-mig-manager"
_OWN: Final = ("host_root", "config_file", "default_config_file", "clients_file", "stop_clients")


def _help(row: Setting) -> str:
    text = help_with_variables(row)
    return f"Without effect: {row.idle}.  [env var: {', '.join(row.envs)}]" if row.idle else text


@click.command(PROGRAM, cls=GoFlagsCommand, examples=f"{PROGRAM} --node-name gpu-1 --config-file config.yaml")
@settled((*PROCESS, *FLAGS, *WITHOUT), text=_help)
def mig_manager(**flags: Any) -> None:
    """Cut this node's GPUs into the MIG slices that its Node's label nvidia.com/mig.config names, until stopped."""
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    configure(level=os.environ.get("LOG_LEVEL") or "info", form="text")
    stuck = run_async(_run(read_options(flags, os.environ)))
    if stuck:
        # What hangs would also hang the interpreter's own clean-up.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


def read_options(flags: Mapping[str, Any], env: Mapping[str, str]) -> AgentOptions:
    """The options of an agent with the one role. Raises ConfigError."""
    from kgpu.agent.host import DRIVER_PLACE
    from kgpu.agent.options import AgentOptions, LabelsSink
    from kgpu.agent.roles.mig_manager import NAME
    from kgpu.cli.agent import settle

    if not flags["node_name"]:
        raise ConfigError(
            "the node's name is missing", "a value for --node-name", "set NODE_NAME from the pod's spec.nodeName"
        )
    root = Path(flags["host_root"])
    host = Path(env.get(ENV_HOST_ROOT) or (HOST_ROOT if root.is_dir() else "/"))
    places = ("driver_root", "container_driver_root")
    role = {name: str(flags[name]).lower() if name == "stop_clients" else flags[name] for name in _OWN}
    options = AgentOptions(
        roles=(PROGRAM,),
        node_name=flags["node_name"],
        kubeconfig=flags["kubeconfig"],
        namespace=env.get("POD_NAMESPACE") or env.get("NAMESPACE") or "",
        host_root=host,
        kubelet_socket=Path(env.get("KUBELET_SOCKET") or KUBELET_SOCKET),
        labels_sink=LabelsSink.NONE,
        state_dir=Path(env.get("STATE_DIR") or STATE_DIR),
        overrides={
            DRIVER_PLACE: {name: flags[name] for name in places if flags[name]},
            NAME: {name: value for name, value in role.items() if value},
        },
        env=dict(env),
    )
    return settle(options)


async def _run(options: AgentOptions) -> tuple[str, ...]:
    from kgpu.agent.roles import choose_roles
    from kgpu.agent.run import serve

    return await serve(options, choose_roles(options.roles))
