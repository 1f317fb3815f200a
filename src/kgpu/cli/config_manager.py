"""``config-manager``: the replaced plugin's program beside a device plugin, with its flags, variables and link."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import OPTION_SHAPES, GoFlagsCommand, check_kubeconfig, run_async
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL

if TYPE_CHECKING:
    from kgpu.agent.config_manager import ConfigManagerSettings

# flag, environment, parameter, shape, default, help
FLAGS: Final = (
    ("--oneshot", "ONESHOT", "oneshot", "bool", "false", "Choose once, and end."),
    ("--kubeconfig", "KUBECONFIG", "kubeconfig", "text", "", "How to reach the API server. Default: in-cluster."),
    ("--node-name", "NODE_NAME", "node_name", "text", "", "The Node whose label chooses."),
    ("--node-label", "NODE_LABEL", "node_label", "text", DEVICE_PLUGIN_CONFIG_LABEL, "The label's name."),
    ("--config-file-srcdir", "CONFIG_FILE_SRCDIR", "srcdir", "text", "", "The folder with the config files."),
    ("--config-file-dst", "CONFIG_FILE_DST", "dst", "text", "", "The link to the one that is chosen."),
    ("--default-config", "DEFAULT_CONFIG", "default_config", "text", "", "The config of a Node without a label."),
    ("--fallback-strategies", "FALLBACK_STRATEGIES", "fallbacks", "text", "",
     "What to try without label and default: named, single, empty."),
    ("--send-signal", "SEND_SIGNAL", "send_signal", "bool", "true", "Tell the process of a change."),
    ("--signal", "SIGNAL", "signal", "text", "1", "The signal's number."),
    ("--process-to-signal", "PROCESS_TO_SIGNAL", "process", "text", "nvidia-device-plugin", "The program's name."),
)  # fmt: skip
REQUIRED: Final = (("node_name", "node-name"), ("srcdir", "config-file-srcdir"), ("dst", "config-file-dst"))
LAST_SIGNAL: Final = 64


def _options(function: Any) -> Any:
    for flag, env, name, shape, default, text in reversed(FLAGS):
        kind = {**OPTION_SHAPES[shape], "default": default}
        function = click.option(flag, name, envvar=env, metavar="VALUE", help=text, show_envvar=True, **kind)(function)
    return function


@click.command("config-manager", cls=GoFlagsCommand, examples="config-manager --node-name gpu-1 --oneshot")
@_options
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
                f"give --{flag}, or set {next(row[1] for row in FLAGS if row[2] == name)}",
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
    from kgpu.base.log import log_decision
    from kgpu.base.supervise import stop_on_signals
    from kgpu.base.waits import first_of
    from kgpu.kube.client import connect

    log = logging.getLogger("kgpu.config-manager")
    api = connect(kubeconfig)
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            manager = ConfigManager(settings, lambda decision: log_decision(log, decision))
            await first_of(run(manager, settings, api, once=once), stop.wait())
    finally:
        await api.close()
