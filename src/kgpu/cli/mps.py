"""``mps-control-daemon``: the replaced plugin's program that runs MPS control daemons, with its flags and variables.

In the agent the same is the role ``mps``; this is for pods made for the replaced program, which mount the MPS root at
``/mps``. What has to be given back to the node is noted there: the rest of such a container goes with it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.cli._common import GoFlagsCommand, run_async
from kgpu.cli._options import help_naming_variables, settled
from kgpu.formats.mps_folders import MPS_CONTAINER_ROOT
from kgpu.formats.names import ENV_HW_STATE, ENV_MPS_FOLDER, STATE_DIR
from kgpu.formats.settings import Restart, Setting

if TYPE_CHECKING:
    from kgpu.agent.options import AgentOptions

ROLE: Final = "mps-control-daemon"
MOUNT_SHM: Final = "mount-shm"
_row = partial(Setting, metavar="VALUE")

FLAGS: Final = (
    _row(attr="config_file", flag="--config-file", envs=("CONFIG_FILE",), restart=Restart.NONE,
         help="The device plugin's config file v1; followed."),
    _row(attr="mig_strategy", flag="--mig-strategy", envs=("MIG_STRATEGY",),
         help="How the device plugin offers MIG devices: none, single or mixed."),
    _row(attr="mps_root", flag="--mps-root", envs=("MPS_ROOT",),
         help="The folder on the host for MPS pipes and shared memory."),
)  # fmt: skip


@click.command(
    ROLE, cls=GoFlagsCommand, examples=f"mps-control-daemon {MOUNT_SHM}\nmps-control-daemon --config-file plugin.yaml"
)
@click.argument("what", required=False, default="", type=click.Choice(["", MOUNT_SHM]), metavar=f"[{MOUNT_SHM}]")
@settled(FLAGS, text=help_naming_variables)
def mps_control_daemon(*, what: str, **flags: str) -> None:
    """Run the MPS control daemons of the GPUs that the device plugin shares by MPS, until stopped.

    With mount-shm: only mount the memory that daemons and clients share, and end.
    """
    from kgpu.base.log import configure

    configure(level=os.environ.get("LOG_LEVEL") or "info", form="text")
    if what == MOUNT_SHM:
        mount_shm(os.environ)
        return
    stuck = run_async(_run(read_options(flags, os.environ)))
    if stuck:
        # What hangs would also hang the interpreter's own clean-up.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


def mount_shm(env: Mapping[str, str]) -> None:
    """Mount the shared memory below the MPS root, in place of one that is there. Raises HostError."""
    from kgpu.mps.folders import prepare_shm

    # A process of a simulated node has no mounts of its own, and a simulated driver shares no memory.
    mounted = ENV_MPS_FOLDER not in env and ENV_HW_STATE not in env
    prepare_shm(env.get(ENV_MPS_FOLDER) or MPS_CONTAINER_ROOT, mounted=mounted, again=True)


def read_options(flags: Mapping[str, str], env: Mapping[str, str]) -> AgentOptions:
    """The options of an agent with the one role. Raises ConfigError."""
    from kgpu.agent.host import DRIVER_PLACE
    from kgpu.agent.options import AgentOptions, LabelsSink
    from kgpu.cli.agent import settle

    folder = Path(env.get(ENV_MPS_FOLDER) or MPS_CONTAINER_ROOT)
    given = {"mps_root": flags["mps_root"] or str(folder), "mig_strategy": flags["mig_strategy"]}
    options = AgentOptions(
        roles=(ROLE,),
        config_file=Path(flags["config_file"]) if flags["config_file"] else None,
        node_name=env.get("NODE_NAME", ""),
        labels_sink=LabelsSink.NONE,
        state_dir=Path(env.get("STATE_DIR") or (str(folder) if folder.is_dir() else STATE_DIR)),
        overrides={DRIVER_PLACE: {name: value for name, value in given.items() if value}},
        env=dict(env),
    )
    return settle(options)


async def _run(options: AgentOptions) -> tuple[str, ...]:
    from kgpu.agent.roles import choose_roles
    from kgpu.agent.run import serve

    return await serve(options, choose_roles(options.roles))
