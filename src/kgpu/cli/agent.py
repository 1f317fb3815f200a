"""``kgpu agent``: the node's process. Reads flags and environment, then hands over to ``kgpu.agent.run``.

The components' own flags come from their tables; only flags that were given become overrides, so that a component's
precedence (flag, environment, file, default) stays its own.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.cli._common import (
    ExampleCommand,
    check_kubeconfig,
    driver_root_here,
    log_options,
    run_async,
    with_state,
)
from kgpu.cli._options import option
from kgpu.formats.names import (
    CDI_DIR,
    DRIVER_INSTALL_DIR,
    ENV_HOST_ROOT,
    ENV_WAIT_FOR_VALIDATION,
    KUBELET_SOCKET,
    NFD_FEATURE_FILE,
    STATE_DIR,
)

if TYPE_CHECKING:
    from kgpu.agent.options import AgentOptions

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ROLES: Final = ("deviceplugin", "labels")
SINKS: Final = ("auto", "nodefeature", "file", "node", "none")
EXAMPLES: Final = """
kgpu agent --roles deviceplugin,labels --node-name "$(hostname)"
kgpu agent --roles deviceplugin --config-map gpu-operator/plugin-configs --default-config default
kgpu agent --roles labels --labels-sink file --health-address 127.0.0.1:8090
kgpu agent --auto --node-name "$NODE_NAME" --namespace gpu-operator
kgpu agent --auto --roles deviceplugin --node-name "$NODE_NAME" --namespace gpu-operator
kgpu agent --auto --roles exporter --node-name "$NODE_NAME" --namespace gpu-operator -- -f /etc/counters.csv
"""

# (flag, environment, parameter, default, metavar, help) of what the agent itself is told.
TEXT_OPTIONS: Final = (
    ("--roles", ("KGPU_ROLES",), "roles", None, "ROLES",
     "What to run, separated by commas. Default: deviceplugin,labels; with --auto everything."),
    ("--root", ("KGPU_ROOT",), "root", "", "DIR", "The driver root here (and on the host: --driver-root)."),
    ("--node-name", ("NODE_NAME",), "node_name", "", "NAME", "This node's name in the cluster."),
    ("--kubeconfig", ("KUBECONFIG",), "kubeconfig", "", "FILE", "How to reach the API server. Default: in-cluster."),
    ("--namespace", ("NAMESPACE",), "namespace", "default", "NS", "Where to write namespaced objects."),
    ("--kubelet-socket", ("KUBELET_SOCKET",), "kubelet_socket", KUBELET_SOCKET, "FILE", "The kubelet's socket."),
    ("--config-file", ("CONFIG_FILE",), "config_file", "", "FILE", "Device plugin config (v1); followed."),
    ("--config-map", ("CONFIG_MAP",), "config_map", "", "NS/NAME", "Configs by name; followed with the node's label."),
    ("--default-config", ("DEFAULT_CONFIG",), "default_config", "", "KEY", "The config of a node without a label."),
    ("--fallback-strategies", ("FALLBACK_STRATEGIES",), "fallbacks", "named,single", "LIST",
     "What to try without label and default: named, single, empty."),
    ("--labels-file", ("GFD_OUTPUT_FILE",), "labels_file", NFD_FEATURE_FILE, "FILE", "Where the sink `file` writes."),
    ("--cdi-dir", ("CDI_DIR",), "cdi_dir", CDI_DIR, "DIR", "Where CDI specs are written."),
    ("--health-address", ("HEALTH_ADDRESS",), "health_address", "", "HOST:PORT",
     "Serve /healthz, /readyz and /statusz there."),
    ("--host-root", (ENV_HOST_ROOT,), "host_root", "/", "DIR", "The host's / as this process sees it."),
    ("--driver-install-dir", ("DRIVER_INSTALL_DIR",), "driver_install_dir", DRIVER_INSTALL_DIR, "DIR",
     "Where a driver container puts the driver; the operator's word counts with --auto."),
    ("--wait-for-validation", (ENV_WAIT_FOR_VALIDATION,), "validations_dir", "", "DIR",
     "Offer devices only after the validator's files are in this folder."),
    ("--state-dir", ("STATE_DIR",), "state_dir", STATE_DIR, "DIR", "What the agent remembers over restarts."),
)  # fmt: skip


def agent_options(function: F) -> F:
    """The options of ``TEXT_OPTIONS``."""
    for flag, envs, parameter, default, metavar, text in reversed(TEXT_OPTIONS):
        function = click.option(
            flag, parameter, envvar=list(envs), default=default, metavar=metavar, help=text,
            show_default=bool(default), show_envvar=True,
        )(function)  # fmt: skip
    return function


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
    """(component, row) of the components' tables of flags; a flag that both have is told to both."""
    from kgpu.deviceplugin.config import FLAGS
    from kgpu.discovery.config import OPTIONS

    labels = [row for row in OPTIONS if row.attr not in REPLACED_LABEL_OPTIONS]
    return (*(("device plugin", row) for row in FLAGS), *(("labels", row) for row in labels))


def component_parameters(taken: Iterable[str]) -> list[click.Parameter]:
    """One click option per flag of the components, except those that the agent has itself."""
    used = set(taken)
    parameters: list[click.Parameter] = []
    for component, row in component_rows():
        names = [name for name in (row.flag, *row.aliases) if name.startswith("--") and name not in used]
        if names and row.flag in names:
            used.update(names)
            parameters.append(
                option(row, names=names, parameter=parameter(row), text=_help(component, row), metavar="VALUE")
            )
    return parameters


def parameter(row: Any) -> str:
    """The click parameter of a row's flag: the same for the same flag of two components."""
    return f"component_{row.flag.lstrip('-').replace('-', '_')}"


# What the agent has in its own way: --labels-sink and --labels-file.
REPLACED_LABEL_OPTIONS: Final = {"oneshot", "output_file", "use_node_feature_api"}


def _help(component: str, row: Any) -> str:
    choices = f" ({', '.join(row.choices)})" if row.choices else ""
    return f"{component.capitalize()}: {row.help.rstrip('.')}{choices}.  [env var: {', '.join(row.envs)}]"


def overrides_for(component: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The component's flags that were given, by the component's own names."""
    return {
        row.attr: given[parameter(row)]
        for owner, row in component_rows()
        if owner == component and given.get(parameter(row)) not in {None, ()}
    }


@click.command("agent", cls=AgentCommand, examples=EXAMPLES)
@click.option(
    "--auto",
    is_flag=True,
    envvar="KGPU_AUTO",
    show_envvar=True,
    help="Run the roles that the operator and the Node's labels ask for, of those in --roles if it is given.",
)
@agent_options
@click.option(
    "--labels-sink",
    type=click.Choice(SINKS),
    default="auto",
    envvar="LABELS_SINK",
    show_default=True,
    show_envvar=True,
    help="Where labels go. auto: a NodeFeature if there is an API server, else nowhere.",
)
@log_options
def agent(*, log_level: str, log_format: str, **given: Any) -> None:
    """Run this node's roles in one process, beside the child that talks to the driver.

    A role that lacks something waits and says for what; the others run. SIGHUP reads the configuration again, SIGTERM
    ends the agent. With --auto, what follows -- are flags for the first role in --roles, as the program that it
    replaces takes them.
    """
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), given["kubeconfig"])
    running = _serve(build_options(given, os.environ))
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


def build_options(given: Mapping[str, Any], env: Mapping[str, str]) -> AgentOptions:
    """``AgentOptions`` from click's parameters. Raises ConfigError."""
    from kgpu.agent.options import AgentOptions, LabelsSink, parse_config_map
    from kgpu.base.http import parse_address
    from kgpu.formats.config_choice import parse_fallbacks

    def path(name: str) -> Path | None:
        return Path(given[name]) if given[name] else None

    overrides = overrides_for("device plugin", given)
    namespace = given["namespace"]
    options = AgentOptions(
        roles=_words(given["roles"], () if given["auto"] else DEFAULT_ROLES),
        auto=given["auto"],
        role_args=given.get("role_args", ()),
        root=path("root"),
        host_root=Path(given["host_root"]),
        driver_install_dir=Path(given["driver_install_dir"]),
        validations_dir=path("validations_dir"),
        node_name=given["node_name"],
        kubeconfig=given["kubeconfig"],
        namespace=namespace,
        kubelet_socket=Path(given["kubelet_socket"]),
        config_file=path("config_file"),
        config_map=parse_config_map(given["config_map"], namespace) if given["config_map"] else None,
        default_config=given["default_config"],
        fallbacks=parse_fallbacks(given["fallbacks"]),
        labels_sink=LabelsSink(given["labels_sink"]),
        labels_file=Path(given["labels_file"]),
        cdi_dir=Path(given["cdi_dir"]),
        health_address=parse_address(given["health_address"]) if given["health_address"] else None,
        state_dir=Path(given["state_dir"]),
        plugin_overrides=overrides,
        labels_overrides=overrides_for("labels", given),
        env=dict(env),
    )
    options.check()
    return options


def _words(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    return default if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def settle(options: AgentOptions) -> AgentOptions:
    """Refuse what is wrong from the start, while someone is looking, and settle which driver root is read.

    Raises ConfigError for a flag, variable or config file that can't be accepted.
    """
    from kgpu.deviceplugin.config import FLAGS, resolve
    from kgpu.discovery.config import resolve as resolve_labels
    from kgpu.formats.plugin_config import PluginConfig

    config = PluginConfig()
    if options.config_file is not None:
        from kgpu.agent.config_file import read_config
        from kgpu.formats.plugin_config_parse import parse_config

        found = read_config(options.config_file)
        if found.problem is not None:
            raise found.problem
        config = parse_config(found.text, source=found.name)
    settings = resolve(config, overrides=options.plugin_overrides, env=options.env)
    resolve_labels(config, overrides=options.labels_overrides, env=options.env)
    root = options.root or driver_root_here(settings)
    overrides: dict[str, Any] = {"container_driver_root": str(root), **options.plugin_overrides}
    row = next(row for row in FLAGS if row.attr == "driver_root")
    told = row.attr in overrides or row.key in config.flags or any(name in options.env for name in row.envs)
    if options.root is not None and not told:
        # Told of one place only: then the host has the driver there too.
        overrides[row.attr] = str(root)
    return dataclasses.replace(
        options,
        root=None if root == Path("/") else root,
        plugin_overrides=overrides,
        env=with_state(options.env, root),
    )
