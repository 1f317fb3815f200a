"""``kgpu lab hw``: make a simulated driver root, look at it, change it, and break it.

Only parses arguments and prints; the work is in ``kgpu.hw.simulator``, imported when a command runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.base.printable import in_columns
from kgpu.cli import _complete_lab
from kgpu.cli._common import ExampleCommand, ExampleGroup, output_option, print_json
from kgpu.cli._lab import lab_options, machine_root, said_or_meant

F = TypeVar("F", bound=Callable[..., Any])


def _root_option(**words: Any) -> Callable[[F], F]:
    return click.option(
        "--root",
        callback=_not_empty,
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        envvar="KGPU_ROOT",
        **words,
    )


def _not_empty(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """An empty value is what a failed command in `$(...)` leaves; it is not the current folder."""
    del ctx, param
    if str(value) == ".":
        raise ConfigError("--root is empty", "the simulated driver root's folder", "see the message before this one")
    return value


def on_machine(function: F) -> F:
    """Adds what says which simulated machine it is about: --root, or --node of a lab; the parameter is ``root``."""

    @functools.wraps(function)
    def with_root(*args: Any, root: Path | None, node: str, name: str | None, folder: Path | None, **words: Any) -> Any:
        lab = bool(node or name or folder)
        if lab and root is not None and _was_typed("root"):
            raise ConfigError("--root beside --node, --name or --dir", "one of them", "leave out --root")
        if lab or root is None:
            root = machine_root(*said_or_meant(name, folder), node)
        return function(*args, root=root, **words)

    node = click.option(
        "--node", default="", metavar="NODE", shell_complete=_complete_lab.nodes,
        help="The node of a running lab. Default: its only one with simulated GPUs.",
    )  # fmt: skip
    root = _root_option(help="In place of a lab's node: a simulated driver root.")
    return node(root(lab_options(with_root)))  # type: ignore[return-value]  # what click calls has `root`, too


def _was_typed(name: str) -> bool:
    """Whether the command line has it, and not the environment alone."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


NEW_ROOT = _root_option(required=True, help="The simulated driver root.")
GPU = click.option("--gpu", type=int, metavar="I", help="GPU index.")
GPU_REQUIRED = click.option("--gpu", type=int, metavar="I", required=True, help="GPU index.")

LOAD_PID = 1_000_000  # and the GPU's index: the process of `load`

GROUP_EXAMPLES = """
kgpu lab hw create hgx-h100 --root /tmp/node1
KGPU_HW_STATE=/tmp/node1/state LD_LIBRARY_PATH=/tmp/node1/usr/lib/x86_64-linux-gnu /tmp/node1/usr/bin/nvidia-smi
kgpu lab hw inject --node gpu-node-1 xid 79 --gpu 3
kgpu lab hw clear --node gpu-node-1
"""


@click.group("hw", cls=ExampleGroup, examples=GROUP_EXAMPLES)
def hw_group() -> None:
    """Simulated GPUs: make a driver root, show it, change it, break it."""


@hw_group.command("create", examples="kgpu lab hw create hgx-h100 --root /tmp/node1\n"
    "kgpu lab hw create t4 --gpus 4 --root /tmp/node2 --seed node2\n"
    "nvidia-smi topo -m > topo.txt; kgpu lab hw create hgx-h100 --topology topo.txt --root /tmp/node3")  # fmt: skip
@click.argument("profile", shell_complete=_complete_lab.profiles)
@NEW_ROOT
@click.option("--gpus", type=int, metavar="N", help="Number of GPUs, 1-64; the profile is cut or repeated.")
@click.option(
    "--topology",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="YAML (keys numa, pcie, nvlink, boards) or the text of `nvidia-smi topo -m`.",
)
@click.option("--seed", metavar="TEXT", help="Tells nodes of one profile apart: other UUIDs and serials.")
@click.option("--driver", metavar="VERSION", help="Driver version, such as 550.54.15.")
@click.option("--force", is_flag=True, help="Replace a simulated root that is there.")
@output_option()
def create_command(
    *,
    profile: str,
    root: Path,
    gpus: int | None,
    topology: Path | None,
    seed: str | None,
    driver: str | None,
    force: bool,
    output: str,
) -> None:
    """Make a simulated driver root of PROFILE (`kgpu lab hw list`, or a YAML file)."""
    from kgpu.hw.simulator import create, operate

    created = create.create_root(profile, root, gpus=gpus, topology=topology, seed=seed, force=force, driver=driver)
    environment = create.environment(created)
    if output == "json":
        print_json({"root": str(created), "environment": environment, "gpus": len(operate.snapshot(created)["gpus"])})
        return
    node = operate.snapshot(created)
    names = ", ".join(f"{count} x {name}" for name, count in _counts([gpu["name"] for gpu in node["gpus"]]).items())
    click.echo(f"{created}: {names}, driver {node['driver_version'] or 'of the kernel'}")
    click.echo("Programs use it with:")
    for name, value in environment.items():
        click.echo(f"  export {name}={value}")


@hw_group.command("list", examples="kgpu lab hw list\nkgpu lab hw list -o json")
@output_option()
def list_command(output: str) -> None:
    """List the built-in profiles."""
    from kgpu.hw.simulator import machines

    loaded = [machines.load(name) for name in machines.names()]
    if output == "json":
        rows = [
            {
                "name": profile.name,
                "title": profile.title,
                "gpus": [gpu.model.name for gpu in profile.gpus],
                "driver_version": profile.driver.version,
                "cuda_version": getattr(profile.driver, "cuda", None),
            }
            for profile in loaded
        ]
        print_json(rows)
        return
    for profile in loaded:
        click.echo(f"{profile.name:14} {len(profile.gpus):2d} GPUs  {profile.title}")


@hw_group.command("show", examples="kgpu lab hw show --node gpu-node-1\nkgpu lab hw show --node gpu-node-1 -o json")
@on_machine
@output_option()
def show_command(root: Path, output: str) -> None:
    """Show the GPUs: memory, temperature, load, MIG, processes, faults."""
    from kgpu.hw.simulator import operate

    node = operate.snapshot(root)
    if output == "json":
        print_json(node)
        return
    cuda = f", CUDA {node['cuda_version']}" if "cuda_version" in node else ""
    head = f"{node['hostname']}: profile {node['profile']}, driver {node['driver_version']}{cuda}" + (
        "" if node["driver_loaded"] else ", driver NOT LOADED"
    )
    click.echo(head + (f", FAULTS: {', '.join(node['faults'])}" if node["faults"] else ""))
    _table(HEAD, [_row(gpu) for gpu in node["gpus"]])


def _set_help() -> str:
    from kgpu.hw.simulator.settings import SETTINGS

    rows = [f"  {row.key + '*' * row.node:22} {row.form}: {row.doc}" for row in SETTINGS.values()]
    return "\n".join(["Keys (of one GPU with --gpu, else of all; those with * of the node):", *rows])


class _SetCommand(ExampleCommand):
    """Adds the table of keys to the help, made from the settings' rows."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write(_set_help() + "\n")
        super().format_epilog(ctx, formatter)


@hw_group.command("set", cls=_SetCommand, examples="kgpu lab hw set --node gpu-node-1 --gpu 0 temperature=85\n"
    "kgpu lab hw set --node gpu-node-1 driver-version=550.54.15\n"
    "kgpu lab hw set --node gpu-node-1 --gpu 2 nvlink.4=down")  # fmt: skip
@on_machine
@GPU
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
def set_command(root: Path, gpu: int | None, values: tuple[str, ...]) -> None:
    """Set readings and modes."""
    from kgpu.hw.simulator import operate

    pairs: dict[str, object] = {}
    for item in values:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f'"{item:.80}" is not KEY=VALUE', "such as temperature=85", "write it so")
        pairs[key] = value
    operate.set_values(root, pairs, gpu=gpu)


@hw_group.command("mig", examples="kgpu lab hw mig --node gpu-node-1 --gpu 0 --profiles 1g.10gb:7\n"
    "kgpu lab hw mig --node gpu-node-1 --gpu 1 --profiles 3g.40gb,2g.20gb,1g.10gb\n"
    "kgpu lab hw mig --node gpu-node-1 --gpu all --off")  # fmt: skip
@on_machine
@click.option("--gpu", metavar="I|all", required=True, help="GPU index, or all GPUs of the node.")
@click.option("--profiles", metavar="PROFILE[:COUNT],...", help="Slices that replace those of the GPU, in this order.")
@click.option("--off", is_flag=True, help="Remove the slices and turn MIG off.")
def mig_command(root: Path, gpu: str, profiles: str | None, off: bool) -> None:
    """Cut a GPU into MIG slices, or make it whole again."""
    from kgpu.hw.simulator import mig, operate

    if off == (profiles is not None):
        raise ConfigError("neither or both of --profiles and --off", "one of them", "see `kgpu lab hw mig --help`")
    slices = mig.expand((profiles or "").split(",")) if not off else []
    for index in _gpu_indices(operate.snapshot(root), gpu):
        if off:
            mig.disable(root, index)
        else:
            mig.partition(root, index, slices)


@hw_group.command("partition", examples="kgpu lab hw partition --node gpu-node-1 --gpu 0 --mode CPX\n"
    "kgpu lab hw partition --node gpu-node-1 --gpu all --mode CPX --memory NPS4")  # fmt: skip
@on_machine
@click.option("--gpu", metavar="I|all", required=True, help="GPU index, or all GPUs of the node.")
@click.option("--mode", metavar="SPX|DPX|QPX|CPX", required=True, help="How its compute units are parted.")
@click.option("--memory", metavar="NPS1|NPS4", default="", help="How its memory is parted; as it is when not given.")
def partition_command(root: Path, gpu: str, mode: str, memory: str) -> None:
    """Part an AMD GPU, as the driver does for its users; NVIDIA's are cut with `mig`."""
    from kgpu.hw.simulator import operate
    from kgpu.hw.simulator.amd import operate as amd
    from kgpu.hw.simulator.amd.node_file import is_amd

    if not is_amd(root):
        raise ConfigError(f"{root} has no AMD GPUs", "a root such as of `create mi300x`", "see `kgpu lab hw mig`")
    amd.set_partition(root, _gpu_indices(operate.snapshot(root), gpu), mode, memory)


@hw_group.group("driver", cls=ExampleGroup, examples="kgpu lab hw driver unload --node gpu-node-1\n"
    "kgpu lab hw driver load 580.95.05 --node gpu-node-1\n"
    "kgpu lab hw driver fail build --node gpu-node-1")  # fmt: skip
def driver_group() -> None:
    """The driver's kernel modules: load and unload them, let the driver's container fail."""


@driver_group.command("unload", examples="kgpu lab hw driver unload --node gpu-node-1")
@on_machine
def unload_command(root: Path) -> None:
    """Unload the modules, as rmmod does: refused while a program has a GPU open."""
    from kgpu.hw.simulator import modules

    modules.unload(root)


@driver_group.command("load", examples="kgpu lab hw driver load --node gpu-node-1\n"
    "kgpu lab hw driver load 580.95.05 --node gpu-node-1")  # fmt: skip
@click.argument("version", required=False)
@on_machine
def load_command(version: str | None, root: Path) -> None:
    """Load the modules again, or those of driver VERSION with its libraries."""
    from kgpu.hw.simulator import modules

    click.echo(f"driver {modules.load(root, version)} is loaded")


FAIL_EXAMPLES = "kgpu lab hw driver fail build --node gpu-node-1\nkgpu lab hw driver fail none --node gpu-node-1"


class _FailCommand(ExampleCommand):
    """Adds the phases to the help, made from their table."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kgpu.hw.simulator.container_settings import PHASES

        with formatter.section("Phases"):
            formatter.write_dl([*PHASES.items(), ("none", "it works again")])
        super().format_epilog(ctx, formatter)


@driver_group.command("fail", cls=_FailCommand, examples=FAIL_EXAMPLES)
@click.argument("phase")
@on_machine
def fail_command(phase: str, root: Path) -> None:
    """Let the driver's container fail in PHASE, from its next start on.

    For a node whose driver comes in a container (`kgpu lab node add PROFILE --driver container`).
    """
    from kgpu.hw.simulator import container_settings

    container_settings.change(root, fail="" if phase == "none" else phase)


@driver_group.command("takes", examples="kgpu lab hw driver takes 30 --node gpu-node-1")
@click.argument("seconds", type=float)
@on_machine
def takes_command(seconds: float, root: Path) -> None:
    """How many SECONDS a driver's container takes for an installation."""
    from kgpu.hw.simulator import container_settings

    container_settings.change(root, takes=seconds)


INJECT_EXAMPLES = """
kgpu lab hw inject --node gpu-node-1 xid 79 --gpu 3
kgpu lab hw inject --root /tmp/node1 xid 94 --gpu 0 --gi 7 --ci 0
kgpu lab hw inject --node gpu-node-1 ecc --gpu 1 --count 3
kgpu lab hw inject --node gpu-node-1 hang --gpu 2
kgpu lab hw inject --node gpu-node-1 slow --us 200000
kgpu lab hw inject --node gpu-node-1 hot --gpu 0
kgpu lab hw inject --node gpu-node-1 init-error DRIVER_NOT_LOADED
"""


@hw_group.command("inject", examples=INJECT_EXAMPLES)
@on_machine
@click.argument("fault", metavar="FAULT")
@click.argument("value", required=False)
@GPU
@click.option("--gi", type=int, help="xid, ecc: the GPU instance it is about.")
@click.option("--ci", type=int, help="xid, ecc: the compute instance it is about.")
@click.option("--count", type=int, default=1, show_default=True, help="ecc: number of errors.")
@click.option("--corrected", is_flag=True, help="ecc: single-bit errors instead of double-bit ones.")
@click.option("--us", type=int, metavar="N", help="slow: delay of each call in microseconds.")
@click.option("--celsius", type=int, metavar="T", help="hot: the temperature; default just above slowdown.")
def inject_command(
    *,
    root: Path,
    fault: str,
    value: str | None,
    gpu: int | None,
    gi: int | None,
    ci: int | None,
    count: int,
    corrected: bool,
    us: int | None,
    celsius: int | None,
) -> None:
    """Make a fault happen: xid N, lost, ecc, hang, slow, hot, init-error CODE.

    An Xid brings what it implies (79: the GPU is lost; 48: ECC counters and a pending repair; ...). hang, slow and
    init-error without --gpu concern every call on the node. Other vendors' GPUs have: lost,
    ecc (not Intel's), hang, garbage, hot; Gaudi's also needs-reset.
    """
    from kgpu.hw.simulator import operate

    options: dict[str, Any] = {"gpu": gpu, "gi": gi, "ci": ci, "count": count, "corrected": corrected}
    options |= {"us": us, "celsius": celsius}
    if fault == "xid":
        if value is None or not value.isdecimal() or len(value) > 9:
            raise ConfigError(f"the Xid is {value or 'missing'}", "a number such as 79", "give it: `inject xid 79 ...`")
        options["xid"] = int(value)
    elif fault == "init-error":
        options["code"] = value or ""
    elif value is not None:
        raise ConfigError(f'"{value:.80}" after {fault}', "nothing there", "see `kgpu lab hw inject --help`")
    operate.inject(root, fault, **options)


@hw_group.command("process", examples="kgpu lab hw process --node gpu-node-1 --gpu 0 4242 --memory 2048\n"
    "kgpu lab hw process --node gpu-node-1 --gpu 1 4243 --gi 7 --ci 0 --utilization 60\n"
    "kgpu lab hw process --node gpu-node-1 --gpu 0 4242 --end")  # fmt: skip
@on_machine
@GPU_REQUIRED
@click.argument("pid", type=int)
@click.option("--memory", type=int, default=0, show_default=True, metavar="MIB", help="Memory that it holds.")
@click.option("--utilization", type=int, default=0, show_default=True, metavar="PERCENT", help="Load that it causes.")
@click.option("--kind", default="compute", show_default=True, help="compute, graphics or mps.")
@click.option("--gi", type=int, help="The GPU instance that it runs on.")
@click.option("--ci", type=int, help="The compute instance that it runs on.")
@click.option("--end", is_flag=True, help="Take it away again.")
def process_command(
    *,
    root: Path,
    gpu: int,
    pid: int,
    memory: int,
    utilization: int,
    kind: str,
    gi: int | None,
    ci: int | None,
    end: bool,
) -> None:
    """Put a process on a GPU or MIG slice by word alone, or take it away."""
    from kgpu.hw.simulator import processes

    if end:
        processes.remove(root, gpu, pid)
    else:
        processes.add(root, gpu, pid=pid, memory_mib=memory, sm_percent=utilization, kind=kind, gi=gi, ci=ci)


class _LoadCommand(ExampleCommand):
    """Adds the profiles to the help, made from their rows."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kgpu.hw.simulator.load_profiles import LOADS

        with formatter.section("Profiles"):
            formatter.write_dl([(name, profile.title) for name, profile in LOADS.items()])
        super().format_epilog(ctx, formatter)


@hw_group.command("load", cls=_LoadCommand, examples="kgpu lab hw load --node gpu-node-1 --gpu 0 train\n"
    "kgpu lab hw load --node gpu-node-1 --gpu 1 --gi 7 --ci 0 inference --after 30\n"
    "kgpu lab hw load --node gpu-node-1 --gpu 0 --end")  # fmt: skip
@on_machine
@GPU_REQUIRED
@click.argument("profile", required=False)
@click.option("--pid", type=int, metavar="N", help="The process; default: 1000000 and the GPU's index.")
@click.option("--after", type=int, default=0, metavar="S", help="Begin that many seconds in the profile.")
@click.option("--gi", type=int, help="The GPU instance that it runs on.")
@click.option("--ci", type=int, help="The compute instance that it runs on.")
@click.option("--end", is_flag=True, help="Take it away again.")
def load_profile_command(
    *,
    root: Path,
    gpu: int,
    profile: str | None,
    pid: int | None,
    after: int,
    gi: int | None,
    ci: int | None,
    end: bool,
) -> None:
    """Let a process of PROFILE load a GPU or MIG slice, by word alone, or end it.

    Use, memory, power, heat and traffic then follow the profile over time. A program on the simulated libcuda does the
    same with KGPU_SIMULATED_LOAD=PROFILE in its environment, for as long as it has a context.
    """
    from kgpu.hw.simulator import processes

    if end == (profile is not None):
        raise ConfigError("neither or both of PROFILE and --end", "one of them", "see `kgpu lab hw load --help`")
    process = LOAD_PID + gpu if pid is None else pid
    if profile is None:
        processes.remove(root, gpu, process)
    else:
        processes.add(root, gpu, pid=process, load=profile, after_s=after, gi=gi, ci=ci, name=profile)


@hw_group.command("clear", examples="kgpu lab hw clear --node gpu-node-1\nkgpu lab hw clear --node gpu-node-1 --gpu 3")
@on_machine
@GPU
def clear_command(root: Path, gpu: int | None) -> None:
    """Make a GPU, or the whole node, healthy again."""
    from kgpu.hw.simulator import operate

    operate.clear(root, gpu)


def _gpu_indices(node: dict[str, Any], gpu: str) -> list[int]:
    if gpu != "all" and not gpu.isdecimal():
        raise ConfigError(f'--gpu "{gpu:.80}"', "a GPU's index, or all", "list them with `kgpu lab hw show`")
    return list(range(len(node["gpus"]))) if gpu == "all" else [int(gpu)]


HEAD = ("GPU", "NAME", "PCI", "MEMORY MiB", "TEMP", "POWER W", "UTIL", "MIG", "PARTITION", "PROCESSES", "FAULTS")
WRAPPED = frozenset({"NAME", "MIG", "PROCESSES", "FAULTS"})  # on a narrow terminal


def _counts(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _row(gpu: dict[str, Any]) -> tuple[str, ...]:
    mig = gpu["mig"]
    slices = _counts([device["profile"] for device in mig["devices"]])
    layout = ", ".join(f"{name} x{count}" for name, count in slices.items()) or "on, no slices"
    faults = [*gpu["faults"], *([] if gpu["recovery_action"] == "none" else [f"needs {gpu['recovery_action']}"])]
    return (
        str(gpu["index"]),
        gpu["name"],
        gpu["pci_bus_id"],
        f"{gpu['memory_used_mib']} / {gpu['memory_total_mib']}",
        f"{gpu['temperature_c']} C",
        f"{gpu['power_w']:.0f} / {gpu['power_limit_w']}",
        f"{gpu['utilization_percent']} %",
        (layout if mig["enabled"] else "off") + (" (change pending)" if mig["pending"] else "")
        if mig["capable"]
        else "-",
        gpu.get("partition") or "-",
        ", ".join(f"{process['pid']} {Path(process['name']).name}".rstrip() for process in gpu["processes"]) or "-",
        ", ".join(faults) or "-",
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Rich on a terminal, plain aligned columns elsewhere; columns that say nothing are left out."""
    kept = [i for i in range(len(head)) if any(row[i] != "-" for row in rows)]
    head, rows = tuple(head[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name in head:
            table.add_column(name, no_wrap=name not in WRAPPED, style="red" if name == "FAULTS" else None)
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    click.echo("\n".join(in_columns((head, *rows))))
