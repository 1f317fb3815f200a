"""``kgpu device-plugin``: the device plugin alone, and trying its choices without a cluster.

Without a subcommand it runs the plugin, so that the replaced program's command lines work as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import (
    ExampleGroup,
    GoFlagsCommand,
    driver_root_here,
    log_options,
    output_option,
    print_error,
    print_json,
    root_option,
    run_async,
    with_state,
)
from kgpu.cli._options import option
from kgpu.formats.names import CDI_DIR, ENV_HOST_ROOT, KUBELET_SOCKET, STATE_DIR

if TYPE_CHECKING:
    from kgpu.formats.config_choice import ConfigText
    from kgpu.hw.port import Reader


def _help(row: Any) -> str:
    choices = f" One of: {', '.join(row.choices)}." if row.choices else ""
    return f"{row.help[:1].upper()}{row.help[1:]}.{choices}  [env var: {', '.join(row.envs)}]"


class RunByDefault(ExampleGroup):
    """Words that begin with a flag belong to ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class RunCommand(GoFlagsCommand):
    """Takes the flags in from the component's table when it is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from kgpu.deviceplugin.config import FLAGS

        own = super().get_params(ctx)
        rows = [option(row, parameter=f"flag_{row.attr}", text=_help(row), metavar="VALUE") for row in FLAGS]
        return [*own[:-1], *rows, *own[-1:]]


@click.group(
    "device-plugin",
    cls=RunByDefault,
    examples="""
    kgpu device-plugin run --mig-strategy mixed
    kgpu device-plugin check-config plugin.yaml
    kgpu device-plugin prefer --root /tmp/node --available 0,2,4,5 --must 0 --size 2
    """,
)
def device_plugin() -> None:
    """The device plugin alone; try its choices. Without a subcommand: run."""


@device_plugin.command("run", cls=RunCommand, examples="kgpu device-plugin run --device-list-strategy cdi-cri")
@click.option("--config-file", envvar="CONFIG_FILE", default="", metavar="FILE", help="Config file v1; followed.")
@click.option(
    "--kubelet-socket", envvar="KUBELET_SOCKET", default=KUBELET_SOCKET, show_default=True, metavar="FILE",
    help="The kubelet's socket; the plugin's own sockets are made beside it.",
)  # fmt: skip
@click.option("--cdi-dir", envvar="CDI_DIR", default=CDI_DIR, show_default=True, metavar="DIR", help="For CDI specs.")
@click.option(
    "--state-dir", envvar="STATE_DIR", default=STATE_DIR, show_default=True, metavar="DIR",
    help="What is remembered over restarts.",
)  # fmt: skip
@log_options
def run_command(
    *,
    config_file: str,
    kubelet_socket: str,
    cdi_dir: str,
    state_dir: str,
    log_level: str,
    log_format: str,
    **flags: Any,
) -> None:
    """Offer this node's devices to its kubelet until stopped."""
    from kgpu.base.log import configure

    if not kubelet_socket or os.environ.get("KUBELET_SOCKET") == "":
        raise ConfigError(
            "--kubelet-socket (KUBELET_SOCKET) is empty",
            "the kubelet's socket: a device plugin that does not register serves nobody",
            f"leave it out, or give its path, usually {KUBELET_SOCKET}",
        )
    configure(level=log_level, form=log_format)
    overrides = {name.removeprefix("flag_"): value for name, value in flags.items() if value not in {None, ()}}
    run_async(_run(config_file, Path(kubelet_socket), Path(cdi_dir), Path(state_dir), overrides))


async def _run(
    config_file: str, kubelet_socket: Path, cdi_dir: Path, state_dir: Path, overrides: Mapping[str, Any]
) -> None:
    import asyncio
    import signal

    from kgpu.agent.config_file import FileConfigSource
    from kgpu.agent.plugin_specs import PluginSpecs
    from kgpu.agent.shared_reader import SharedReader
    from kgpu.base.service import end, first_end
    from kgpu.base.supervise import stop_on_signals
    from kgpu.deviceplugin.config import resolve
    from kgpu.deviceplugin.run import DevicePluginContext, run
    from kgpu.deviceplugin.source import MemoryConfigSource
    from kgpu.formats.plugin_config_parse import parse_config
    from kgpu.hw.verdicts import VerdictFile, verdicts_path

    source = FileConfigSource(Path(config_file)) if config_file else MemoryConfigSource()
    first = await source.next(None)
    if first.problem is not None:
        raise first.problem
    settings = resolve(parse_config(first.text, source=first.name), overrides=overrides, env=os.environ)
    root = driver_root_here(settings)
    env = with_state(os.environ, root)
    reader = SharedReader(lambda: _open(root))
    host_root = Path(os.environ.get(ENV_HOST_ROOT) or "/")
    context = DevicePluginContext(
        reader=reader,
        config=source,
        report=_report,
        state_dir=state_dir,
        kubelet_socket=kubelet_socket,
        cdi_dir=cdi_dir,
        overrides={"container_driver_root": str(root), **overrides},
        env=env,
        cdi_writer=PluginSpecs(root, cdi_dir),
        verdicts=VerdictFile(verdicts_path(host_root, os.environ)),
        host_root=host_root,
        wait=not settings.fail_on_init_error,
    )
    tasks = [asyncio.create_task(run(context), name="device plugin")]
    if isinstance(source, FileConfigSource):
        tasks.append(asyncio.create_task(source.run(), name="config file"))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, source.reload)
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            await first_end(tasks, stop=stop)
    finally:
        await end(*tasks)
        await reader.close()


async def _open(root: Path) -> Reader:
    from kgpu.hw.open import open_reader

    return open_reader(driver_root=root)


def _report(advice: Any) -> None:
    import logging

    from kgpu.base.log import log_advice

    log_advice(logging.getLogger("kgpu.deviceplugin"), advice)


@device_plugin.command("prefer", examples="kgpu device-plugin prefer --available 0,2,4,5 --must 0 --size 2 -o json")
@root_option
@click.option("--available", required=True, metavar="LIST", help="Indices of the GPUs that are free, e.g. 0,2,4,5.")
@click.option("--must", default="", metavar="LIST", help="Indices that have to be among the choice.")
@click.option("--size", required=True, type=int, help="How many GPUs to choose.")
@output_option("text", "json")
def prefer_command(*, root: str, available: str, must: str, size: int, output: str) -> None:
    """Which GPUs the kubelet would be told to take, and why."""
    free, required = _indices("--available", available), _indices("--must", must)
    choice = run_async(_prefer(root, free, required, size))
    if output == "json":
        print_json(choice)
    else:
        click.echo(f"devices: {','.join(map(str, choice['devices']))}\nscore: {choice['score']}\nwhy: {choice['why']}")


async def _prefer(root: str, free: list[int], required: list[int], size: int) -> dict[str, Any]:
    from kgpu.deviceplugin.prefer import prefer_indices
    from kgpu.hw.open import open_reader

    reader = open_reader(driver_root=Path(root) if root else None)
    try:
        inventory = await reader.inventory()
        links = await reader.links()
    finally:
        await reader.close()
    choice = prefer_indices(inventory, links, available=free, required=required, size=size)
    return {"devices": list(choice.indices), "score": choice.score, "why": choice.why}


def _standard_input() -> ConfigText:
    from kgpu.agent.config_file import MAX_BYTES
    from kgpu.formats.config_choice import ConfigText

    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return ConfigText(name="standard input", text=raw.decode())
    except ValueError as error:
        raise ConfigError(
            f"can't read the config from standard input: {error}",
            "UTF-8 text of at most 1 MiB",
            "send a config file (v1)",
        ) from error


def _refuse_manifest(text: ConfigText) -> None:
    """A config's wrapping is taken for the config itself so often that it deserves a word of its own."""
    from kgpu.formats.yaml import load_document

    try:
        document = load_document(text.text, source=text.name).value
    except ConfigError:
        return  # told with the other problems
    if isinstance(document, dict) and "apiVersion" in document and "kind" in document:
        raise ConfigError(
            f"{text.name}: this is a Kubernetes manifest (kind {document['kind']!s:.80})",
            "a config file (v1); in a ConfigMap the config is the value under data.<key>",
            "take that value alone: kubectl get configmap NAME -o jsonpath='{.data.KEY}' | kgpu device-plugin"
            " check-config -",
        )


def _indices(flag: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 5):
            raise ConfigError(f"{flag}: {word!r} is not a GPU index", "numbers separated by commas, e.g. 0,2,4,5",
                              "see the indices with `nvidia-smi -L`")  # fmt: skip
    numbers = [int(word) for word in words]
    for twice in [number for number in dict.fromkeys(numbers) if numbers.count(number) > 1]:
        raise ConfigError(f"{flag}: GPU {twice} is there twice", "every index once", f"correct {flag}")
    return numbers


@device_plugin.command("check-config", examples="kgpu device-plugin check-config plugin.yaml\n"
    "kubectl get configmap configs -o jsonpath='{.data.default}' | kgpu device-plugin check-config -")  # fmt: skip
@click.argument("file", metavar="FILE")
@output_option("text", "json")
def check_config(*, file: str, output: str) -> None:
    """Check a config file (v1): every problem, or the configuration that it means. FILE - is standard input."""
    from kgpu.agent.config_file import read_config
    from kgpu.deviceplugin.config import printable, resolve
    from kgpu.formats.plugin_config_parse import examine

    text = _standard_input() if file == "-" else read_config(Path(file))
    if text.problem is not None:
        raise text.problem
    _refuse_manifest(text)
    config, problems = examine(text.text, source=text.name)
    settings = None
    if not problems:
        try:
            settings = resolve(config, overrides={}, env={})
        except ConfigError as contradiction:
            problems = [contradiction]
    if output == "json":
        print_json(
            {
                "valid": not problems,
                "problems": [{"what": p.what, "expected": p.expected, "todo": p.remedy} for p in problems],
                "config": printable(settings) if settings is not None else None,
            }
        )
    else:
        for problem in problems:
            print_error(problem)
        if settings is not None:
            print_json(printable(settings))
    if problems:
        raise click.exceptions.Exit(2)
