"""``kgpu labels``: print this node's accelerator labels, or publish them as gpu-feature-discovery does.

``-o`` is the form of what is printed (text, json); a file is written with ``--output-file PATH`` (``--output PATH``).
The replaced program has ``-o`` as a short form of the latter, and so has kgpu under its name; a path after ``-o`` of
``kgpu labels`` is answered with that hint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, HwError, UserError
from kgpu.cli._common import GoFlagsCommand, check_kubeconfig, log_options, print_json, root_option, run_async
from kgpu.cli._options import options
from kgpu.discovery.config import CONFIG_FILE_ENVS, OPTIONS, ProgramSettings, first_set, resolve
from kgpu.formats.names import NODE_FEATURE_PREFIX

if TYPE_CHECKING:
    from kgpu.discovery.publish import Publisher
    from kgpu.hw.port import Inventory
    from kgpu.hw.quick import QuickReading
    from kgpu.kube.port import KubeApi

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES: Final = """
kgpu labels
kgpu labels -o json
kgpu labels --root /run/nvidia/driver --mig-strategy mixed
kgpu labels --output-file /etc/kubernetes/node-feature-discovery/features.d/gfd --oneshot=false
kgpu labels --sink node-feature --oneshot=false --node-name gpu-1 --namespace gpu-operator
"""
FORMS: Final = ("text", "json")
AUTO, STDOUT, FILE, NODE_FEATURE, NODE = SINKS = ("auto", "stdout", "file", "node-feature", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelDestination:
    """Where the labels go, and what reaching that place needs."""

    sink: str
    file: str
    node: str
    namespace: str
    pod: str
    kubeconfig: str

    @property
    def target(self) -> str:
        """The file or object, for people."""
        return {
            FILE: self.file,
            NODE_FEATURE: f"the NodeFeature {self.namespace}/{NODE_FEATURE_PREFIX}{self.node}",
            NODE: f"the Node {self.node}",
        }.get(self.sink, "standard output")


def _check_form(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    if value in FORMS:
        return value
    raise ConfigError(
        f'-o {value}: there is no output form "{value}"',
        "-o text or -o json",
        f"to write a feature file, use --output-file {value}" if "/" in value or "." in value else "choose one of them",
    )


# What these flags are under gpu-feature-discovery's name.
DAEMON_FLAGS: Final = {"o": "--output-file", "driver-root-ctr-path": "--root", "container-driver-root": "--root"}


class LabelsCommand(GoFlagsCommand):
    """With gpu-feature-discovery's flags under its name."""

    def meant(self, args: Sequence[str]) -> Mapping[str, str]:
        return DAEMON_FLAGS if "--daemon" in args else {}


@click.command("labels", cls=LabelsCommand, examples=EXAMPLES)
@root_option
@click.option("-o", "form", metavar="FORM", default="text", callback=_check_form, help="What is printed: text or json.")
@options(OPTIONS)
@click.option("--config-file", metavar="FILE", default=None, help="Device plugin config (v1).  [env: CONFIG_FILE]")
@click.option(
    "--sink",
    type=click.Choice(SINKS),
    default=AUTO,
    show_default=True,
    help="Where labels go. auto: --output-file if given, a NodeFeature if asked for, else standard output.",
)
@click.option(
    "--node-name",
    envvar=["NODE_NAME", "DS_NODE_NAME"],
    default="",
    metavar="NAME",
    help="This node's name in the cluster.",
)
@click.option("--namespace", envvar="NAMESPACE", default="default", metavar="NS", help="The NodeFeature's namespace.")
@click.option("--pod-name", envvar="POD_NAME", default="", metavar="NAME", help="The pod that owns the NodeFeature.")
@click.option("--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE", help="How to reach the API server.")
@click.option("--kube-api-qps", hidden=True, default=None)
@click.option("--kube-api-burst", hidden=True, default=None)
@click.option("--daemon", is_flag=True, hidden=True, help="gpu-feature-discovery's defaults.")
@log_options
def labels(
    *, root: str, form: str, sink: str, config_file: str | None, node_name: str, namespace: str, pod_name: str,
    kubeconfig: str, daemon: bool, log_level: str, log_format: str, **flags: Any,
) -> None:  # fmt: skip
    """Print this node's accelerator labels, one key=value per line, or publish them.

    Without --oneshot=false the labels are written once. With it kgpu keeps them true until it is stopped; SIGHUP reads
    the configuration again.
    """
    check_kubeconfig(click.get_current_context(), kubeconfig)
    path = config_file if config_file is not None else first_set(os.environ, CONFIG_FILE_ENVS)
    overrides = {name: value for name, value in flags.items() if value is not None}
    settings = _read_settings(path, overrides)
    place = LabelDestination(
        sink=choose_sink(sink, settings, daemon=daemon, node=node_name),
        file=settings.output_file,
        node=node_name,
        namespace=namespace,
        pod=pod_name,
        kubeconfig=kubeconfig,
    )
    _check_place(place)
    once = settings.oneshot if daemon or "oneshot" in settings.given else True
    if form != "text" and (place.sink != STDOUT or not once):
        raise ConfigError(f"-o {form} is for labels printed once", "one of the two", f"leave -o {form} out")
    if not once or place.sink in {NODE_FEATURE, NODE}:
        from kgpu.base.log import configure

        configure(level=log_level, form=log_format)
    if not once:
        run_async(_keep(root, path, overrides, place))
    elif place.sink == STDOUT:
        from kgpu.hw.quick import QuickReading

        with QuickReading(root or "/") as quick:
            labels_now = _once(root, settings, {}, quick)
        _print(labels_now, form)
    else:
        run_async(_publish_once(root, settings, place))


def choose_sink(sink: str, settings: ProgramSettings, *, daemon: bool, node: str) -> str:
    """The sink that is meant; ``daemon`` has feature discovery's defaults: NodeFeature, else the usual file.

    Its static manifests mount the file's folder and name no node: without one, a NodeFeature has to be asked for.
    """
    if sink != AUTO:
        return sink
    if settings.use_node_feature_api and ("use_node_feature_api" in settings.given or (daemon and node)):
        return NODE_FEATURE
    if settings.output_file and (daemon or "output_file" in settings.given):
        return FILE
    return STDOUT


def _check_place(place: LabelDestination) -> None:
    if place.sink in {NODE_FEATURE, NODE} and not place.node:
        raise ConfigError(
            "required flag node-name not set",
            "the name under which the kubelet registered this node",
            "give --node-name, or set NODE_NAME from the pod's spec.nodeName",
        )
    if place.sink == FILE and not place.file:
        raise ConfigError("--sink file needs a file", "a path in --output-file", "give --output-file PATH")


def _read_settings(path: str, overrides: Mapping[str, Any]) -> ProgramSettings:
    from kgpu.formats.plugin_config import PluginConfig

    if not path:
        return resolve(PluginConfig(), overrides=overrides, env=os.environ)
    from pathlib import Path

    from kgpu.agent.config_file import read_config
    from kgpu.formats.plugin_config_parse import parse_config

    config = read_config(Path(path))
    if config.problem is not None:
        raise config.problem
    return resolve(parse_config(config.text, source=config.name), overrides=overrides, env=os.environ)


def _once(
    root: str, settings: ProgramSettings, previous: Mapping[str, str], quick: QuickReading | None = None
) -> Mapping[str, str]:
    """Read and plan; notes go to standard error."""
    import time

    from kgpu.discovery.node_facts import read_facts
    from kgpu.discovery.plan import plan

    inventory: Inventory | None = None
    error: UserError | None = None
    try:
        inventory = _read_inventory(root, quick)
    except HwError as problem:
        if settings.fail_on_init_error:
            raise
        error = problem
    wanted = settings.labels()
    timestamp = int(time.time()) if wanted.timestamp else None
    facts = read_facts(wanted, root or "/")
    planned = plan(inventory, wanted, facts, timestamp=timestamp, previous=previous, error=error)
    for advice in planned.advice:
        click.echo(f"kgpu labels: {advice.one_line()}", err=True)
    return planned.labels


def _read_inventory(root: str, quick: QuickReading | None = None) -> Inventory:
    inventory = quick.inventory() if quick is not None else None
    if inventory is not None:
        return inventory
    from pathlib import Path

    from kgpu.hw.open import open_reader

    async def read() -> Inventory:
        reader = open_reader(driver_root=Path(root) if root else None)
        try:
            return await reader.inventory()
        finally:
            await reader.close()

    return run_async(read())


def _print(found: Mapping[str, str], form: str) -> None:
    if form == "json":
        print_json(dict(found))
        return
    from kgpu.discovery.lines import as_lines

    sys.stdout.write(as_lines(found))


def _publisher(place: LabelDestination, *, once: bool) -> tuple[Publisher, KubeApi | None]:
    """The publisher, and the API connection to close after it."""
    from kgpu.discovery import publish

    if place.sink == STDOUT:
        return publish.StreamPublisher(sys.stdout), None
    if place.sink == FILE:
        return publish.FilePublisher(place.file, remove_on_close=not once), None
    from kgpu.kube.client import connect

    api = connect(place.kubeconfig)
    if place.sink == NODE:
        return publish.NodeLabelsPublisher(api, node=place.node), api
    return publish.NodeFeaturePublisher(
        api, node=place.node, namespace=place.namespace, pod=place.pod, replace=api.replace
    ), api


async def _publish_once(root: str, settings: ProgramSettings, place: LabelDestination) -> None:
    import asyncio

    publisher, api = _publisher(place, once=True)
    try:
        published = await publisher.published() or {}
        wanted = await asyncio.to_thread(_once, root, settings, published)
        if wanted != published:
            await publisher.publish(wanted)
        if place.sink != STDOUT:
            done = (
                f"{len(wanted)} labels written to"
                if wanted != published
                else f"the {len(wanted)} labels are already in"
            )
            click.echo(f"kgpu labels: {done} {place.target}", err=True)
    finally:
        await publisher.close()
        if api is not None:
            await api.close()


async def _keep(root: str, path: str, overrides: Mapping[str, Any], place: LabelDestination) -> None:
    """The role as a program of its own: until SIGTERM, with the configuration file followed."""
    import asyncio
    import logging
    import signal
    from pathlib import Path

    from kgpu.agent.config_file import FileConfigSource
    from kgpu.agent.remembered_config import DefaultConfig
    from kgpu.agent.shared_reader import SharedReader
    from kgpu.base.log import log_advice
    from kgpu.base.supervise import stop_on_signals
    from kgpu.discovery.node_facts import read_facts
    from kgpu.discovery.run import LabelsContext, run
    from kgpu.hw.open import open_reader
    from kgpu.hw.port import Reader

    log = logging.getLogger("kgpu.labels")

    async def open_now() -> Reader:
        return open_reader(driver_root=Path(root) if root else None)

    reader = SharedReader(open_now)
    source = FileConfigSource(Path(path)) if path else DefaultConfig()
    publisher, api = _publisher(place, once=False)
    ctx = LabelsContext(
        reader=reader.view(),
        config=source,
        publisher=publisher,
        report=lambda advice: log_advice(log, advice),
        facts=lambda wanted: read_facts(wanted, root or "/"),
        overrides=overrides,
        outcome=f"%d labels written to {place.target.replace('%', '%%')}",
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, source.reload if isinstance(source, FileConfigSource) else lambda: None)
    try:
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(source.run()), group.create_task(run(ctx))]
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        await publisher.close()
        await reader.close()
        if api is not None:
            await api.close()
