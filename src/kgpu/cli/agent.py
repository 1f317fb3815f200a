"""``kgpu agent``: the node's process. Reads flags and environment, then hands over to ``kgpu.agent.run``.

The components' own flags come from their tables; only flags that were given become overrides, so that a component's
precedence (flag, environment, file, default) stays its own.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.cli._common import (
    ExampleCommand,
    check_kubeconfig,
    driver_root_here,
    log_options,
    run_async,
    with_state,
)
from kgpu.cli._options import checked_by_click, help_with_variables, option, options
from kgpu.formats.names import (
    CDI_DIR,
    DRIVER_INSTALL_DIR,
    ENV_HOST_ROOT,
    ENV_NODE_STATE_DIR,
    ENV_WAIT_FOR_VALIDATION,
    KUBELET_SOCKET,
    NFD_FEATURE_FILE,
    STATE_DIR,
)
from kgpu.formats.settings import FlagShape, Restart, Setting, read_list, read_path, read_unchanged, resolve

if TYPE_CHECKING:
    from kgpu.agent.options import AgentOptions, LabelsSink
    from kgpu.base.http import Address
    from kgpu.formats.config_choice import Fallback

PLUGIN: Final = "deviceplugin"
LABELS: Final = "labels"
DEFAULT_ROLES: Final = (PLUGIN, LABELS)
_TITLES: Final = {PLUGIN: "Device plugin", LABELS: "Labels"}
SINKS: Final = ("auto", "nodefeature", "file", "node", "none")
EXAMPLES: Final = """
kgpu agent --roles deviceplugin,labels --node-name "$(hostname)"
kgpu agent --roles deviceplugin --config-map gpu-operator/plugin-configs --default-config default
kgpu agent --roles labels --labels-sink file --health-address 127.0.0.1:8090
kgpu agent --auto --node-name "$NODE_NAME" --namespace gpu-operator
kgpu agent --auto --roles deviceplugin --node-name "$NODE_NAME" --namespace gpu-operator
kgpu agent --auto --roles exporter --node-name "$NODE_NAME" --namespace gpu-operator -- -f /etc/counters.csv
"""


def _read_path_or_none(value: Any, where: str) -> Path | None:
    return read_path(value, where) if value else None


def _read_fallbacks(value: Any, where: str) -> tuple[Fallback, ...]:
    from kgpu.formats.config_choice import parse_fallbacks

    del where
    return parse_fallbacks(str(value))


def _read_address(value: Any, where: str) -> Address | None:
    from kgpu.base.http import parse_address

    del where
    return parse_address(str(value)) if value else None


def _read_sink(value: Any, where: str) -> LabelsSink:
    from kgpu.agent.options import LabelsSink

    del where
    return LabelsSink(value)


_text = partial(Setting, reads_default=True)
_file = partial(_text, read=read_path)
_optional = partial(_text, read=_read_path_or_none)

TEXT_OPTIONS: Final = (
    Setting(attr="roles", flag="--roles", envs=("KGPU_ROLES",), read=read_list, default=None, metavar="ROLES",
            help="What to run, separated by commas. Default: deviceplugin,labels; with --auto everything."),
    _optional(attr="root", flag="--root", envs=("KGPU_ROOT",), metavar="DIR",
              help="The driver root here (and on the host: --driver-root)."),
    _text(attr="node_name", flag="--node-name", envs=("NODE_NAME",), metavar="NAME",
          help="This node's name in the cluster."),
    _text(attr="kubeconfig", flag="--kubeconfig", envs=("KUBECONFIG",), metavar="FILE",
          help="How to reach the API server. Default: in-cluster."),
    _text(attr="namespace", flag="--namespace", envs=("NAMESPACE",), default="default", metavar="NS",
          help="Where to write namespaced objects."),
    _file(attr="kubelet_socket", flag="--kubelet-socket", envs=("KUBELET_SOCKET",), default=KUBELET_SOCKET,
          metavar="FILE", help="The kubelet's socket."),
    _optional(attr="config_file", flag="--config-file", envs=("CONFIG_FILE",), metavar="FILE",
              help="Device plugin config (v1); followed.", restart=Restart.NONE),
    _text(attr="config_map", flag="--config-map", envs=("CONFIG_MAP",), metavar="NS/NAME",
          help="Configs by name; followed with the node's label.", restart=Restart.NONE),
    _text(attr="default_config", flag="--default-config", envs=("DEFAULT_CONFIG",), metavar="KEY",
          help="The config of a node without a label."),
    _text(attr="fallbacks", flag="--fallback-strategies", envs=("FALLBACK_STRATEGIES",), read=_read_fallbacks,
          default="named,single", metavar="LIST",
          help="What to try without label and default: named, single, empty."),
    _file(attr="labels_file", flag="--labels-file", envs=("GFD_OUTPUT_FILE",), default=NFD_FEATURE_FILE, metavar="FILE",
          help="Where the sink `file` writes."),
    _file(attr="cdi_dir", flag="--cdi-dir", envs=("CDI_DIR",), default=CDI_DIR, metavar="DIR",
          help="Where CDI specs are written."),
    _text(attr="health_address", flag="--health-address", envs=("HEALTH_ADDRESS",), read=_read_address,
          metavar="HOST:PORT", help="Serve /healthz, /readyz and /statusz there."),
    _file(attr="host_root", flag="--host-root", envs=(ENV_HOST_ROOT,), default="/", metavar="DIR",
          help="The host's / as this process sees it."),
    _file(attr="driver_install_dir", flag="--driver-install-dir", envs=("DRIVER_INSTALL_DIR",),
          default=DRIVER_INSTALL_DIR, metavar="DIR",
          help="Where a driver container puts the driver; the operator's word counts with --auto."),
    _optional(attr="validations_dir", flag="--wait-for-validation", envs=(ENV_WAIT_FOR_VALIDATION,), metavar="DIR",
              help="Offer devices only after the validator's files are in this folder."),
    _file(attr="state_dir", flag="--state-dir", envs=("STATE_DIR",), default=STATE_DIR, metavar="DIR",
          help="What the agent remembers over restarts."),
    _optional(attr="node_state_dir", flag="--node-state-dir", envs=(ENV_NODE_STATE_DIR,), metavar="DIR",
              help="The folder that --state-dir is in, if an agent for the whole node may have kept its state there "
              "before: uninstall removes it, and what that agent has put on the host."),
)  # fmt: skip
AUTO: Final = Setting(
    attr="auto", flag="--auto", envs=("KGPU_AUTO",), read=read_unchanged, default=False, shape=FlagShape.SWITCH,
    help="Run the roles that the operator and the Node's labels ask for, of those in --roles if it is given.",
)  # fmt: skip
LABELS_SINK: Final = _text(
    attr="labels_sink", flag="--labels-sink", envs=("LABELS_SINK",), read=_read_sink, default="auto", choices=SINKS,
    help="Where labels go. auto: a NodeFeature if there is an API server, else nowhere.",
)  # fmt: skip
OPTIONS: Final = (AUTO, *TEXT_OPTIONS, LABELS_SINK)
"""The agent's own options."""


class AgentCommand(ExampleCommand):
    """Takes the components' flags in when it is used, so that listing commands does not load them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {option for parameter in own for option in parameter.opts}
        return [*own[:-1], *component_parameters(taken), *own[-1:]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What follows ``--`` are arguments of the role, as the replaced program takes them: the parameter
        ``role_args``.
        """
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        ctx.params["role_args"] = tuple(args[end + 1 :])
        return rest


def component_rows() -> tuple[tuple[str, Any], ...]:
    """(role, row) of the usual roles' tables of flags; a flag that both have is told to both."""
    from kgpu.deviceplugin.config import FLAGS
    from kgpu.discovery.config import OPTIONS as LABEL_OPTIONS

    labels = [row for row in LABEL_OPTIONS if row.attr not in REPLACED_LABEL_OPTIONS]
    return (*((PLUGIN, row) for row in FLAGS), *((LABELS, row) for row in labels))


def component_parameters(own_flags: Iterable[str]) -> list[click.Parameter]:
    """One click option per flag of the components, except those that the agent has itself."""
    used = set(own_flags)
    parameters: list[click.Parameter] = []
    for role, row in component_rows():
        names = [name for name in (row.flag, *row.aliases) if name.startswith("--") and name not in used]
        if names and row.flag in names:
            used.update(names)
            parameters.append(
                option(row, names=names, parameter=parameter(row), text=_help(role, row), metavar="VALUE")
            )
    return parameters


def parameter(row: Any) -> str:
    """The click parameter of a row's flag: the same for the same flag of two components."""
    return f"component_{row.flag.lstrip('-').replace('-', '_')}"


# What the agent has in its own way: --labels-sink and --labels-file.
REPLACED_LABEL_OPTIONS: Final = {"oneshot", "output_file", "use_node_feature_api"}


def _help(role: str, row: Any) -> str:
    choices = f" ({', '.join(row.choices)})" if row.choices else ""
    return f"{_TITLES[role]}: {row.help.rstrip('.')}{choices}.  [env var: {', '.join(row.envs)}]"


def overrides_in(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The roles' flags that were given, by role and then by the component's own names."""
    overrides: dict[str, dict[str, Any]] = {}
    for role, row in component_rows():
        if given.get(parameter(row)) not in {None, ()}:
            overrides.setdefault(role, {})[row.attr] = given[parameter(row)]
    return overrides


@click.command("agent", cls=AgentCommand, examples=EXAMPLES)
@checked_by_click(AUTO, is_flag=True)
@options(TEXT_OPTIONS, text=help_with_variables)
@checked_by_click(LABELS_SINK, type=click.Choice(SINKS), show_default=True)
@log_options
def agent(*, log_level: str, log_format: str, **flags: Any) -> None:
    """Run this node's roles in one process, beside the child that talks to the driver.

    A role that lacks something waits and says for what; the others run. SIGHUP reads the configuration again, SIGTERM
    ends the agent. With --auto, what follows -- are flags for the first role in --roles, as the program that it
    replaces takes them.
    """
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    running = _serve(build_options(flags, os.environ))
    configure(level=log_level, form=log_format)
    stuck = run_async(running)
    if stuck:
        # What hangs would also hang the interpreter's own clean-up.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


def _serve(options: AgentOptions) -> Coroutine[Any, Any, tuple[str, ...]]:
    """The agent to run, its options settled. Raises ConfigError."""
    from kgpu.agent.roles import ROLES, choose_roles

    if options.auto:
        from kgpu.agent.auto import serve_auto

        return serve_auto(options, choose_roles(options.roles) if options.roles else ROLES)
    from kgpu.agent.run import serve

    settled = settle(options)
    return serve(settled, choose_roles(settled.roles))


def build_options(flags: Mapping[str, Any], env: Mapping[str, str]) -> AgentOptions:
    """``AgentOptions`` from click's parameters and the environment. Raises ConfigError."""
    from kgpu.agent.options import AgentOptions, parse_config_map

    values = dict(resolve(OPTIONS, flags=flags, env=env).values)
    if values["roles"] is None:
        values["roles"] = () if values["auto"] else DEFAULT_ROLES
    name = values["config_map"]
    values["config_map"] = parse_config_map(name, values["namespace"]) if name else None
    options = AgentOptions(
        **values,
        role_args=flags.get("role_args", ()),
        overrides=overrides_in(flags),
        env=dict(env),
    )
    options.check()
    return options


def settle(options: AgentOptions) -> AgentOptions:
    """Refuse what is wrong from the start, while someone is looking, and settle which driver root is read.

    Raises ConfigError for a flag, variable or config file that can't be accepted.
    """
    from kgpu.deviceplugin.config import FLAGS
    from kgpu.deviceplugin.config import resolve as resolve_plugin
    from kgpu.discovery.config import resolve as resolve_labels
    from kgpu.formats.plugin_config import PluginConfig

    config = PluginConfig()
    if options.config_file is not None:
        from kgpu.agent.config_file import read_config
        from kgpu.formats.plugin_config_parse import parse_config

        config_text = read_config(options.config_file)
        if config_text.problem is not None:
            raise config_text.problem
        config = parse_config(config_text.text, source=config_text.name)
    settings = resolve_plugin(config, overrides=options.overrides_of(PLUGIN), env=options.env)
    resolve_labels(config, overrides=options.overrides_of(LABELS), env=options.env)
    root = options.root or driver_root_here(settings)
    overrides: dict[str, Any] = {"container_driver_root": str(root), **options.overrides_of(PLUGIN)}
    row = next(row for row in FLAGS if row.attr == "driver_root")
    driver_root_given = (
        row.attr in overrides or row.key in config.flags or any(name in options.env for name in row.envs)
    )
    if options.root is not None and not driver_root_given:
        # Told of one place only: then the host has the driver there too.
        overrides[row.attr] = str(root)
    return dataclasses.replace(
        options,
        root=None if root == Path("/") else root,
        overrides={**options.overrides, PLUGIN: overrides},
        env=with_state(options.env, root),
    )
