"""What experiments and interrupted scenarios left in a lab, and putting it back to how ``up`` made it.

That is: simulated faults, MIG slices, the scenarios' namespaces, the nodes' label for their configuration and the
ConfigMap behind it. Everything else that somebody put into the cluster is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.hw.simulator import mig, operate
from kgpu.lab import common
from kgpu.lab.port import Lab, NodeHardware, kubectl
from kgpu.lab.scenarios import model


def hardware_leftovers(snapshot: Mapping[str, Any], *, sliced: bool = False) -> list[str]:
    """What is not as in a new simulated node, one line per GPU and fact. ``sliced``: it was made with MIG slices."""
    lines = [f"the node's driver: {fault}" for fault in snapshot["faults"]]
    for gpu in snapshot["gpus"]:
        faults = list(gpu["faults"])
        if not faults and gpu["recovery_action"] != "none":
            faults = [f"recovery action {gpu['recovery_action']}"]
        lines += [f"GPU {gpu['index']}: {fault}" for fault in faults]
        if not sliced and (gpu["mig"]["enabled"] or gpu["mig"]["devices"]):
            lines.append(f"GPU {gpu['index']}: MIG is on, {len(gpu['mig']['devices'])} slices")
    return lines


def namespaces(existing: Iterable[str]) -> list[str]:
    """Those among the ``existing`` namespaces that belong to the scenarios that come with kgpu."""
    ours = {f"demo-{name}" for name in model.bundled()}
    return [name for name in existing if name in ours]


def leftovers(lab: Lab) -> list[str]:
    """What a scenario would stumble over, in words; empty in a lab as ``up`` made it. Raises LabError."""
    machines = lab.hardware()
    lines = []
    for machine in machines:
        where = f"{machine.node}: " if len(machines) > 1 else ""
        lines += [where + line for line in hardware_leftovers(operate.snapshot(machine.root), sliced=machine.sliced)]
    lines += [f"node {node}: label {DEVICE_PLUGIN_CONFIG_LABEL}={choice}" for node, choice in _choices(lab).items()]
    if not _config_is_original(lab):
        lines.append(f"ConfigMap {common.CONFIG_MAP}: not as the lab made it")
    return lines + [f"namespace {name}" for name in _scenario_namespaces(lab)]


def reset(lab: Lab) -> list[str]:
    """Put the lab back to how ``up`` made it; what was found and done away with. Raises LabError, HwError."""
    lines = leftovers(lab)
    if not lines:
        return lines
    with lab.progress.step("remove what the scenarios left"):
        # Pods first: a slice in use can't be removed.
        for name in _scenario_namespaces(lab):
            kubectl(lab, "delete", "namespace", name, "--ignore-not-found", "--timeout=60s")
        for machine in lab.hardware():
            _repair(machine)
        for node in _choices(lab):
            kubectl(lab, "label", "node", node, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
        kubectl(lab, *common.KUBECTL_APPLY)
    return lines


def _repair(machine: NodeHardware) -> None:
    operate.clear(machine.root)
    for gpu in () if machine.sliced else operate.snapshot(machine.root)["gpus"]:
        if gpu["mig"]["enabled"] or gpu["mig"]["devices"]:
            mig.disable(machine.root, gpu["index"])


def _choices(lab: Lab) -> dict[str, str]:
    """Nodes that were told which configuration to use, and which."""
    items = json.loads(kubectl(lab, "get", "nodes", "-l", DEVICE_PLUGIN_CONFIG_LABEL, "-o", "json"))["items"]
    return {item["metadata"]["name"]: item["metadata"]["labels"][DEVICE_PLUGIN_CONFIG_LABEL] for item in items}


def _config_is_original(lab: Lab) -> bool:
    namespace, _, name = common.CONFIG_MAP.partition("/")
    ours = next(
        item["data"] for item in common.objects() if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    )
    done = lab.kubectl_run("get", "configmap", name, "--namespace", namespace, "-o", "json")
    return done.returncode == 0 and json.loads(done.stdout).get("data") == ours


def _scenario_namespaces(lab: Lab) -> list[str]:
    items = json.loads(kubectl(lab, "get", "namespaces", "-o", "json"))["items"]
    return namespaces(item["metadata"]["name"] for item in items)
