"""``make bench``: measures kgpu on this machine and prints each figure beside its goal.

``python -m bench [-o json] [--runs N] [--only WORD]``. Exit code 1 when a goal is missed or a figure can't be
measured, so that a slow submission does not pass unseen where someone asks for it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from bench import (
    churn,
    doctor,
    dra,
    exporter,
    install,
    maintenance,
    measures,
    node_rules,
    nodes,
    operator,
    overview,
    upgrades,
    usage,
)
from bench.machine import describe_machine
from bench.measures import World
from bench.skip import SkippedError


@dataclass(frozen=True, slots=True)
class Figure:
    """One printed line; ``goal`` is the most that the median may be, None when there is no goal."""

    key: str
    title: str
    unit: str
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured together; ``measure`` gives each figure's values by its key."""

    name: str
    figures: tuple[Figure, ...]
    measure: Callable[[World], Mapping[str, list[float]]]


def _labelling(
    name: str, count: int, *, real: bool = False, goals: tuple[float | None, float | None, float | None] = (None,) * 3
) -> Measurement:
    """A ClusterPolicy meets so many Nodes; ``goals``: seconds to labels, seconds to objects, MiB of RSS."""
    where = "real API server" if real else "embedded API"
    labelled, objects, rss = goals
    return Measurement(
        name,
        (
            Figure("labelled", f"{where}, {count:,} nodes, ClusterPolicy to all labelled", "s", labelled),
            Figure("objects", "the same, to all objects applied", "s", objects),
            Figure("rss", f"operator with {count:,} nodes, RSS", "MiB", rss),
            Figure("pss", "the same, PSS", "MiB"),
            Figure("cpu", "the same, CPU until all were labelled", "s"),
        ),
        lambda world: operator.nodes(world, count, real=real),
    )


MEASUREMENTS: Final = (
    Measurement(
        "agent",
        (
            Figure("pss", "agent with both roles and the hardware child, PSS", "MiB", 60),
            Figure("rss", "the same, RSS", "MiB"),
            Figure("registered", "agent start to registered", "s", 1),
        ),
        measures.start_and_memory,
    ),
    Measurement(
        "agent-client",
        (
            Figure("pss", "the same with the API server's client in use, PSS", "MiB", 60),
            Figure("rss", "the same, RSS", "MiB"),
        ),
        measures.memory_with_client,
    ),
    Measurement(
        "agent-vendors",
        (
            Figure("mi300x", "agent on a node with 8 MI300X, plugin, labels, metrics and health, PSS", "MiB", 55),
            Figure("gaudi3", "the same with 8 Gaudi 3, libhlml's child included, PSS", "MiB", 55),
            Figure("max1550", "the same with 8 Max 1550, PSS", "MiB"),
        ),
        measures.memory_by_vendor,
    ),
    Measurement(
        "allocate",
        (Figure("p50", "Allocate p50", "ms", 0.6), Figure("p99", "Allocate p99", "ms", 1.5)),
        measures.allocate,
    ),
    Measurement(
        "dra",
        (
            Figure("whole p50", "NodePrepareResources of a whole GPU, p50", "ms", 5),
            Figure("whole p99", "the same, p99", "ms", 15),
            Figure("slice p50", "the same of a MIG slice that is made for it, p50", "ms"),
            Figure("slice p99", "the same, p99", "ms", 100),
            Figure("change", "slices made by hand to their ResourceSlices", "s", 1),
            Figure("two", "agent with dra and labels, the API server's client in use, PSS", "MiB", 60),
            Figure("all", "the same with all roles, dra in place of deviceplugin, PSS", "MiB", 60),
        ),
        dra.claims,
    ),
    Measurement(
        "prefer-8",
        (
            Figure("choice", "preferred allocation, 8 GPUs, any size, p99", "ms", 1),
            Figure("socket", "the same asked over the unix socket, p99", "ms"),
        ),
        lambda world: measures.prefer(world, "hgx-h100", 8, tuple(range(1, 9))),
    ),
    Measurement(
        "prefer-16",
        (
            Figure("choice", "preferred allocation, 16 GPUs, size 8, p99", "ms", 10),
            Figure("socket", "the same asked over the unix socket, p99", "ms"),
        ),
        lambda world: measures.prefer(world, "hgx-h100", 16, (8,)),
    ),
    Measurement(
        "prefer-cube",
        (
            Figure("choice", "preferred allocation, 8 GPUs of a hybrid cube mesh, any size, p99", "ms", 1),
            Figure("socket", "the same asked over the unix socket, p99", "ms"),
        ),
        lambda world: measures.prefer(world, "dgx-1-v100", 8, tuple(range(1, 9))),
    ),
    Measurement(
        "prefer-16-cube",
        (
            Figure("choice", "preferred allocation, 16 GPUs, two cube meshes, size 8, p99", "ms", 10),
            Figure("socket", "the same asked over the unix socket, p99", "ms"),
        ),
        lambda world: measures.prefer(world, "dgx-1-v100", 16, (8,)),
    ),
    Measurement(
        "list-560",
        (Figure("first", "ListAndWatch of 560 devices, open to whole list", "ms"),),
        lambda world: {"first": measures.list_and_watch(world)},
    ),
    Measurement(
        "encode-560",
        (Figure("encode", "the list of 560 devices, encoding alone", "ms"),),
        lambda world: {"encode": measures.encode_list(world)},
    ),
    Measurement(
        "labels",
        (Figure("wall", "kgpu labels, wall time", "ms", 150),),
        lambda world: {"wall": measures.command(world, "labels", "--root", str(world.root("hgx-h100")))},
    ),
    Measurement(
        "cdi-56",
        (
            Figure("spec", "kgpu cdi generate, 8 GPUs in 56 MIG slices, wall time", "ms", 300),
            Figure("generation", "the same without starting Python and NVML: find, plan, render", "ms"),
        ),
        measures.cdi_spec,
    ),
    Measurement(
        "scrape-56",
        (
            Figure("p99", "scrape of 8 GPUs in 56 MIG slices with pods, 10,000 times, p99", "ms", 5),
            Figure("p50", "the same, p50", "ms"),
            Figure("pss", "the agent with all roles but the toolkit after them, PSS", "MiB", 60),
            Figure("growth", "the same, growth meanwhile", "MiB", 1),
        ),
        exporter.scrapes_and_memory,
    ),
    Measurement(
        "exporter-rest",
        (
            Figure("usual", "exporter with 56 slices, scraped every second, read every 30 s", "% of a core", 0.5),
            Figure("second", "the same, read every second", "% of a core"),
            Figure("agent", "the agent with all roles but the toolkit, scraped every second", "% of a core"),
        ),
        exporter.at_rest,
    ),
    Measurement(
        "usage",
        (
            Figure("pss", "role usage beside the agent's others, 8 GPUs with 16 processes, PSS", "MiB", 1),
            Figure("cpu", "the same, what it adds to the agent", "% of a core", 0.5),
            Figure("look", "the same, one look, every 10 s", "ms"),
        ),
        usage.added,
    ),
    Measurement(
        "churn",
        (
            Figure("p99", "embedded API, GET while 200 pods churn on 20 nodes for 5 min, p99", "ms", 20),
            Figure("p50", "the same, p50", "ms"),
            Figure("wrong", "GPUs held twice, lost or leaked meanwhile, agents killed at random", "", 0),
            Figure("ready", "20 full nodes added to all GPUs allocatable", "s"),
        ),
        lambda world: churn.measure(world.folder),
    ),
    Measurement(
        "help",
        (Figure("wall", "kgpu --help, wall time", "ms", 100),),
        lambda world: {"wall": measures.command(world, "--help")},
    ),
    Measurement(
        "overview",
        (
            Figure("paint", "kgpu overview, 1,000 nodes with 8 GPUs, page with style and script", "ms", 200),
            Figure("size", "the same, packed", "kB", 60),
            Figure("rss", "its process, RSS", "MiB", 80),
            Figure("one", "the same with one viewer, reading the nodes", "% of a core"),
            Figure("viewers", "nine viewers more", "% of a core", 2),
        ),
        overview.measure,
    ),
    Measurement(
        "doctor-file",
        (
            Figure("wall", "kgpu doctor --from a file, 1,000 nodes and 10,000 pods, wall time", "s", 5),
            Figure("cpu", "the same, CPU time", "s"),
            Figure("rss", "the same, RSS", "MiB", 500),
        ),
        doctor.from_file,
    ),
    Measurement(
        "doctor-live",
        (
            Figure("wall", "kgpu doctor on an embedded API, 1,000 nodes and 10,000 pods", "s", 15),
            Figure("cpu", "the same, CPU time", "s"),
            Figure("rss", "the same, RSS", "MiB", 500),
        ),
        doctor.live,
    ),
    Measurement(
        "install",
        (
            Figure(install.READY, "real cluster, helm install to ClusterPolicy ready", "s", 10),
            Figure(install.HELM, "the same, to the end of helm install", "s"),
            *(Figure(step.key, f"the same, to {step.title}", "s") for step in install.STEPS[:-1]),
        ),
        install.to_ready,
    ),
    Measurement(
        "operator-1000",
        (
            Figure("labelled", "embedded API, 1,000 nodes, ClusterPolicy to all labelled", "s", 5),
            Figure("objects", "the same, to all objects applied", "s", 1),
            Figure("settled", "the same, to nothing left to do for two seconds", "s"),
            Figure("rss", "operator with 1,000 nodes, RSS", "MiB", 100),
            Figure("pss", "the same, PSS", "MiB"),
            Figure("cpu", "the same, CPU until all were labelled", "s"),
            Figure("idle writes", "the same, writes in 30 s at rest", "", 0),
            Figure("idle cpu", "the same, CPU at rest", "% of a core"),
        ),
        lambda world: operator.nodes(world, 1000),
    ),
    _labelling("operator-5000", 5000),
    Measurement(
        "node-rules-1000",
        (
            Figure("start", "1,000 NodeFeatures and 100 rules, operator start to all Nodes labelled", "s", 10),
            Figure("change", "the same, a changed rule to all Nodes", "s", 10),
            Figure("cpu", "the same, operator's CPU", "s"),
            Figure("rss", "the same, operator's RSS", "MiB", 130),
        ),
        node_rules.rules,
    ),
    _labelling("operator-real-1000", 1000, real=True, goals=(5, 1, 100)),
    _labelling("operator-real-5000", 5000, real=True),
    Measurement(
        "maintenance-1000",
        (
            Figure("wall", "embedded API, 1,000 nodes maintained, at most 10 % at a time", "s"),
            Figure("most", "the same, nodes that were cordoned at a time, at most", "", 100),
            Figure("writes", "the same, API writes of the engine per node", "", 25),
            Figure("events", "the same, Events per node beside them", ""),
            Figure("held", "the same, nodes left cordoned", "", 0),
            Figure("cpu", "the same, operator's CPU", "s"),
            Figure("rss", "the same, operator's RSS", "MiB"),
        ),
        lambda world: maintenance.all_nodes(world, 1000),
    ),
    Measurement(
        "upgrades-1000",
        (
            Figure("busy", "in memory, 1,000 nodes' drivers upgraded, 50 at a time", "s"),
            Figure("longest", "the same, the longest half second of simulated time", "ms"),
            Figure("decision", "the same, the operator's longest decision", "ms"),
            Figure("simulated", "the same, simulated time", "s"),
            Figure("most", "the same, upgrades under way at a time, at most", "", 50),
            Figure("cordoned", "the same, nodes that were cordoned at a time, at most", "", 50),
            Figure("writes", "the same, API writes of the engine per node", "", 25),
            Figure("reads", "the same, API reads of the engine per node", "", 5),
            Figure("left", "the same, nodes left cordoned", "", 0),
            Figure("missing", "the same, nodes without the wanted driver", "", 0),
            Figure("rss", "the same, RSS of the engine and all that it works on", "MiB"),
        ),
        lambda world: upgrades.all_nodes(world, 1000),
    ),
    Measurement(
        "nodes-1000",
        (
            Figure("ready", "1,000 light nodes on the real control plane, all Ready with GPUs", "s", 120),
            *(Figure(f"cpu {part}", f"CPU until then, {part}", "s") for part in nodes.PARTS),
            *(Figure(f"rest {part}", f"CPU at rest, {part}", "% of a core") for part in nodes.PARTS),
            *(Figure(f"pss {part}", f"memory at rest, {part}, PSS", "MiB") for part in nodes.PARTS),
            Figure("burst", "200 GPU pods on them, first create to all Running", "s"),
        ),
        nodes.thousand_nodes,
    ),
)


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--runs", type=int, default=5, help="rounds per figure (default 5)")
    parser.add_argument("--only", default="", metavar="WORD", help="only measurements whose name has this in it")
    arguments = parser.parse_args()
    machine = describe_machine()
    if arguments.output == "text":
        click.echo(
            f"{machine['name']}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_mib']} MiB, "
            f"Linux {machine['kernel']}, Python {machine['python']}, load {machine['load']:.2f}"
        )
        click.echo(f"{'figure':<66}{'goal':>8}{'min':>10}{'median':>10}{'max':>10}  unit")
    rows = []
    measures.compile_all()
    with tempfile.TemporaryDirectory(prefix="kgpu-bench-") as folder:
        world = World(Path(folder), max(1, arguments.runs))
        for measurement in MEASUREMENTS:
            if arguments.only in measurement.name:
                measured = _measure(measurement, world)
                rows += measured
                if arguments.output == "text":
                    for row in measured[:1] if "skipped" in measured[0] else measured:
                        click.echo(_line(row))
    if arguments.output == "json":
        click.echo(json.dumps({"machine": machine, "figures": rows}, indent=2))
    return 0 if all(row["ok"] for row in rows) else 1


def _measure(measurement: Measurement, world: World) -> list[dict[str, Any]]:
    skipped, found = "", dict[str, list[float]]()
    try:
        found = dict(measurement.measure(world))
    except SkippedError as reason:
        skipped = str(reason)
    except Exception as error:  # one figure that can't be measured must not hide the others
        click.echo(f"{measurement.name}: {type(error).__name__}: {error}", err=True)
    rows = []
    for figure in measurement.figures:
        values = found.get(figure.key, [])
        row: dict[str, Any] = {
            "name": f"{measurement.name}.{figure.key}",
            "title": figure.title,
            "unit": figure.unit,
            "goal": figure.goal,
            "runs": len(values),
            "ok": bool(skipped),
            **({"skipped": skipped} if skipped else {}),
        }
        if values:
            median = statistics.median(values)
            row |= {"min": min(values), "median": median, "max": max(values)}
            row["ok"] = figure.goal is None or median <= figure.goal
        rows.append(row)
    return rows


def _line(row: dict[str, Any]) -> str:
    goal = "" if row["goal"] is None else f"<= {row['goal']:g}"
    if "skipped" in row:
        return f"{row['title']:<66}{goal:>8}  skipped: {row['skipped']}"
    if not row["runs"]:
        return f"{row['title']:<66}{goal:>8}{'not measured':>30}  {row['unit']}"
    numbers = "".join(f"{row[key]:>10.3f}" for key in ("min", "median", "max"))
    return f"{row['title']:<66}{goal:>8}{numbers}  {row['unit']}{'' if row['ok'] else '  OVER THE GOAL'}"


if __name__ == "__main__":
    sys.exit(main())
