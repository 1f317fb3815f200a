"""``config-manager``: the replaced plugin's program beside a device plugin, with its flags, variables and link."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import GoFlagsCommand, check_kubeconfig, run_async
from kgpu.cli._options import help_naming_variables, settled
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.formats.settings import FlagShape, Restart, Setting

if TYPE_CHECKING:
    from kgpu.agent.config_manager import ConfigManagerSettings

_row = partial(Setting, metavar="VALUE")
_switch = partial(_row, shape=FlagShape.SWITCH)

FLAGS: Final = (
    _switch(attr="oneshot", flag="--oneshot", envs=("ONESHOT",), default="false", help="Choose once, and end."),
    _row(attr="kubeconfig", flag="--kubeconfig", envs=("KUBECONFIG",),
         help="How to reach the API server. Default: in-cluster."),
    _row(attr="node_name", flag="--node-name", envs=("NODE_NAME",), help="The Node whose label chooses."),
    _row(attr="node_label", flag="--node-label", envs=("NODE_LABEL",), default=DEVICE_PLUGIN_CONFIG_LABEL,
         help="The label's name."),
    _row(attr="srcdir", flag="--config-file-srcdir", envs=("CONFIG_FILE_SRCDIR",),
         help="The folder with the config files.", restart=Restart.NONE),
    _row(attr="dst", flag="--config-file-dst", envs=("CONFIG_FILE_DST",), help="The link to the one that is chosen."),
    _row(attr="default_config", flag="--default-config", envs=("DEFAULT_CONFIG",),
         help="The config of a Node without a label."),
    _row(attr="fallbacks", flag="--fallback-strategies", envs=("FALLBACK_STRATEGIES",),
         help="What to try without label and default: named, single, empty."),
    _switch(attr="send_signal", flag="--send-signal", envs=("SEND_SIGNAL",), default="true",
            help="Tell the process of a change."),
    _row(attr="signal", flag="--signal", envs=("SIGNAL",), default="1", help="The signal's number."),
    _row(attr="process", flag="--process-to-signal", envs=("PROCESS_TO_SIGNAL",), default="nvidia-device-plugin",
         help="The program's name."),
)  # fmt: skip
REQUIRED: Final = (("node_name", "node-name"), ("srcdir", "config-file-srcdir"), ("dst", "config-file-dst"))
LAST_SIGNAL: Final = 64


@click.command("config-manager", cls=GoFlagsCommand, examples="config-manager --node-name gpu-1 --oneshot")
@settled(FLAGS, text=help_naming_variables)
def config_manager(**flags: str) -> None:
    """Keep a link to the config file that a label of the Node chooses, and tell a process of this pod of changes.

    `kgpu agent --config-map` follows label and ConfigMap by itself; this is for pods made for the replaced program.
    """
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    settings = read_settings(flags)
    once = _bool("--oneshot (ONESHOT)", flags["oneshot"])
    configure(level=os.environ.get("LOG_LEVEL") or "info", form="text")
    run_async(_run(settings, flags["kubeconfig"], once=once))


def read_settings(options: dict[str, str]) -> ConfigManagerSettings:
    """Checked settings of the flags by parameter. Raises ConfigError."""
    from kgpu.agent.config_manager import ConfigManagerSettings
    from kgpu.formats.config_choice import parse_fallbacks

    for name, flag in REQUIRED:
        if not options[name]:
            raise ConfigError(
                f"invalid <{flag}>: must not be empty string", f"a value for --{flag}",
                f"give --{flag}, or set {next(row.envs[0] for row in FLAGS if row.attr == name)}",
            )  # fmt: skip
    number = options["signal"]
    if not (number.isascii() and number.isdecimal() and len(number) < 4 and 0 < int(number) <= LAST_SIGNAL):
        raise ConfigError(
            f"--signal (SIGNAL) is {number!r:.40}", f"a signal's number from 1 to {LAST_SIGNAL}, such as 1 for SIGHUP",
            "correct it, or set --send-signal=false",
        )  # fmt: skip
    return ConfigManagerSettings(
        node=options["node_name"],
        label=options["node_label"],
        source=Path(options["srcdir"]),
        target=Path(options["dst"]),
        default=options["default_config"],
        fallbacks=parse_fallbacks(options["fallbacks"]),
        signal=int(number) if _bool("--send-signal (SEND_SIGNAL)", options["send_signal"]) else None,
        process=options["process"],
    )


def _bool(where: str, text: str) -> bool:
    from kgpu.formats.go_flags import read_bool

    return read_bool(text, where)


async def _run(settings: ConfigManagerSettings, kubeconfig: str, *, once: bool) -> None:
    import asyncio
    import logging
    import signal

    from kgpu.agent.config_manager import ConfigManager, run
    from kgpu.base.log import log_advice
    from kgpu.base.supervise import stop_on_signals
    from kgpu.base.waits import first_of
    from kgpu.kube.client import connect

    log = logging.getLogger("kgpu.config-manager")
    api = connect(kubeconfig)
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            manager = ConfigManager(settings, lambda advice: log_advice(log, advice))
            await first_of(run(manager, settings, api, once=once), stop.wait())
    finally:
        await api.close()
