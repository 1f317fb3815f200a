"""A thousand nodes' NodeFeatures meet a hundred rules: how soon has every Node its labels, and what does that cost?

``python -m bench.node_rules [--nodes 1000]``. Brings up a throw-away embedded API server with Nodes, NodeFeatures and
NodeFeatureRules, starts ``kgpu operator run`` and measures from its start; then changes a rule that all nodes match.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.machine import cpu_seconds, logged, memory_of
from bench.measures import KGPU, World
from bench.operator import AT_ONCE, LIMIT_S, NAMESPACE, PREFIX, embedded, free_port, make_nodes, page, prepare
from kgpu.formats import names
from kgpu.formats.crd.definitions import nfd_crds
from kgpu.kube import kinds
from kgpu.kube.client import Client, connect
from kgpu.kube.port import NODE_FEATURES, NODES, Object, name_of

RULES: Final = 100
OBJECTS: Final = 20
OPTIONS: Final = 1000
"""Lines of a kernel's configuration, which is most of a NodeFeature; it is the same on all nodes."""
DOMAIN: Final = "example.com"
_WRITTEN: Final = re.compile(r"^nfd_master_node_updates_total (\d+)$", re.MULTILINE)


def rules(world: World) -> Mapping[str, list[float]]:
    """Seconds and MiB by the keys of ``bench.run``'s figures; measured once."""
    return {key: [value] for key, value in asyncio.run(measure(world.folder, 1000)).items()}


async def measure(folder: Path, count: int) -> dict[str, float]:
    """All of it."""
    async with embedded(folder) as kubeconfig:
        api = connect(str(kubeconfig))
        try:
            await prepare(api)
            for crd in nfd_crds():
                await api.apply(kinds.CUSTOM_RESOURCE_DEFINITIONS, crd, manager="bench")
            await make_nodes(api, count)
            await _make_features(api, count)
            for number in range(OBJECTS):
                await api.apply(kinds.NODE_FEATURE_RULES, rule_object(number), manager="bench")
            return await _operate(api, kubeconfig, folder, count)
        finally:
            await api.close()


async def _operate(api: Client, kubeconfig: Path, folder: Path, count: int) -> dict[str, float]:
    metrics, health = free_port(), free_port()
    command = [
        *KGPU, "operator", "run", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE, "--image", "kgpu:bench",
        "--feature-rules", "true", "--other-discovery", "ignore", "--operations", "false",
        "--metrics-bind-address", f"127.0.0.1:{metrics}", "--health-probe-bind-address", f"127.0.0.1:{health}",
    ]  # fmt: skip
    found: dict[str, float] = {}
    begin = time.perf_counter()
    with logged(command, os.environ, folder / "operator.log") as process:
        async with asyncio.timeout(LIMIT_S):
            await _written(process, metrics, count)
            found["start"] = time.perf_counter() - begin
            await _all_have(api, f"{DOMAIN}/rule-0", "true", count)
            used, begin = cpu_seconds(process.pid), time.perf_counter()
            await api.apply(kinds.NODE_FEATURE_RULES, rule_object(0, "changed"), manager="bench")
            await _written(process, metrics, 2 * count)
            found["change"] = time.perf_counter() - begin
            await _all_have(api, f"{DOMAIN}/rule-0", "changed", count)
        found["cpu"] = cpu_seconds(process.pid) - used
        found["rss"] = memory_of([process.pid]).rss
    return found


async def _written(process: subprocess.Popen[bytes], port: int, count: int) -> None:
    """Return once the operator says that it has changed so many Nodes."""
    while True:
        await asyncio.sleep(0.1)
        assert process.poll() is None, "the operator has ended"
        try:
            told = _WRITTEN.search(await page(port, "/metrics"))
        except OSError:
            continue
        if told and int(told[1]) >= count:
            return


async def _all_have(api: Client, key: str, value: str, count: int) -> None:
    listing = await api.list(replace(NODES, metadata_only=True))
    done = [one for one in listing.items if (one["metadata"].get("labels") or {}).get(key) == value]
    found = sum(name_of(one).startswith(PREFIX) for one in done)
    assert found >= count, f"{found} of {count} Nodes have {key}={value}"


async def _make_features(api: Client, count: int) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def make(name: str) -> None:
        async with limit:
            await api.create(NODE_FEATURES, feature_object(name))

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(make(f"{PREFIX}{number:05d}"))


def feature_object(name: str) -> Object:
    """A NodeFeature as a worker writes it: about 40 KB, most of which all nodes have in common."""
    own = random.Random(name)  # noqa: S311 - which devices a node has
    options = {f"OPTION_{number}": "y" if number % 3 else "m" for number in range(OPTIONS)}
    devices = [
        {"class": own.choice(("0300", "0302", "0200", "0106")), "vendor": own.choice(("10de", "1002", "15b3", "8086")),
         "device": f"{own.randrange(64):04x}"}
        for _ in range(24)
    ]  # fmt: skip
    features: Object = {
        "flags": {
            "cpu.cpuid": {"elements": {f"FEATURE{number}": {} for number in range(80)}},
            "kernel.loadedmodule": {"elements": {f"module_{number}": {} for number in range(150)}},
        },
        "attributes": {
            "kernel.config": {"elements": options},
            "kernel.version": {"elements": {"full": "6.8.0-40-generic", "major": "6", "minor": "8", "revision": "0"}},
            "system.name": {"elements": {"nodename": name}},
            "system.osrelease": {"elements": {"ID": "ubuntu", "VERSION_ID": "24.04"}},
        },
        "instances": {"pci.device": {"elements": [{"attributes": one} for one in devices]}},
    }
    labels = {f"{names.NFD_PREFIX}cpu-cpuid.FEATURE{number}": "true" for number in range(30)}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {names.NFD_NODE_NAME_LABEL: name}},
        "spec": {"features": features, "labels": labels},
    }


def rule_object(number: int, value: str = "true") -> Object:
    """One of ``OBJECTS``, with its share of the rules. All nodes match the first rule, some match the others."""
    share = RULES // OBJECTS
    return {
        "metadata": {"name": f"rules-{number:02d}"},
        "spec": {"rules": [_rule(one, value) for one in range(number * share, (number + 1) * share)]},
    }


def _rule(number: int, value: str) -> Object:
    kernel = {"feature": "kernel.version", "matchExpressions": {"major": {"op": "Ge", "value": ["6"]}}}
    terms: list[Any] = [
        {"feature": "kernel.config", "matchExpressions": {f"OPTION_{number}": {"op": "Exists"}}},
        {"feature": "kernel.loadedmodule", "matchExpressions": {f"module_{number}": {"op": "Exists"}}},
        {"feature": "pci.device", "matchExpressions": {
            "vendor": {"op": "In", "value": ["10de"]}, "device": {"op": "In", "value": [f"{number % 64:04x}"]},
        }},
        {"feature": "system.name", "matchExpressions": {
            "nodename": {"op": "InRegexp", "value": [f"-0+{number}[0-9]*$"]},
        }},
    ]  # fmt: skip
    chosen = [kernel] if not number else [kernel, terms[number % len(terms)]]
    return {"name": f"rule {number}", "labels": {f"{DOMAIN}/rule-{number}": value}, "matchFeatures": chosen}


def main() -> int:
    """Measure once and print."""
    parser = argparse.ArgumentParser(prog="bench.node_rules", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kgpu-bench-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.nodes))
    for key, value in found.items():
        sys.stdout.write(f"{key:<14}{value:10.3f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
