"""What experiments and interrupted scenarios left in a lab, and putting it back to how ``up`` made it.

That is: simulated faults, loads and processes that somebody has put on GPUs by hand, a clock that was moved, MIG
slices, the repairs that faults have called for, the scenarios' namespaces, the nodes' label for their configuration and
the ConfigMap behind it. Everything else that somebody put into the cluster is left alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kgpu.base.errors import LabError
from kgpu.formats import gpu_report
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL, REMEDIATION_REQUESTER
from kgpu.hw.simulator import mig, operate, processes
from kgpu.lab import common
from kgpu.lab.nodes import manage
from kgpu.lab.port import Lab, NodeHardware, kubectl
from kgpu.lab.scenarios import model

WELL_S: Final = 60.0
"""An agent sees within that that a fault is gone."""
_POLL_S: Final = 0.2
_OPERATIONS: Final = "nodeoperations.kgpu.dev"


def hardware_leftovers(snapshot: Mapping[str, Any], *, sliced: bool = False) -> list[str]:
    """What is not as in a new simulated node, one line per GPU and fact. ``sliced``: it was made with MIG slices."""
    lines = [f"the node's driver: {fault}" for fault in snapshot["faults"]]
    if clock := snapshot.get("clock"):
        lines.append(f"the node's clock: {clock['ahead_s']} s ahead, {clock['rate']} s in a second")
    for gpu in snapshot["gpus"]:
        faults = list(gpu["faults"])
        if not faults and gpu["recovery_action"] != "none":
            faults = [f"recovery action {gpu['recovery_action']}"]
        lines += [f"GPU {gpu['index']}: {what}" for what in (*faults, *_by_hand(gpu))]
        if not sliced and (gpu["mig"]["enabled"] or gpu["mig"]["devices"]):
            lines.append(f"GPU {gpu['index']}: MIG is on, {len(gpu['mig']['devices'])} slices")
    return lines


def _by_hand(gpu: Mapping[str, Any]) -> Iterator[str]:
    """What somebody has a GPU do without a pod. Other vendors' nodes have no other processes."""
    if percent := gpu.get("load_set_percent"):
        yield f"a load of {percent} % that was set by hand"
    for process in gpu["processes"]:
        if process.get("by_hand", True):
            load = f" with the load {process['load']}" if process.get("load") else ""
            yield f"process {process['pid']}{load}, put there by hand"


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
    lines += [f"node {node}: switched off" for node in manage.off(lab.about.folder)]
    lines += [f"node {node}: label {DEVICE_PLUGIN_CONFIG_LABEL}={choice}" for node, choice in _choices(lab).items()]
    lines += [f"node {node}: operation {name}, which a fault called for" for name, node in _repairs(lab).items()]
    if not _config_is_original(lab):
        lines.append(f"ConfigMap {common.CONFIG_MAP}: not as the lab made it")
    return lines + [f"namespace {name}" for name in _scenario_namespaces(lab)]


def reset(lab: Lab) -> list[str]:
    """Put the lab back to how ``up`` made it; what was found and done away with. Raises LabError, HwError."""
    lines = leftovers(lab)
    if not lines:
        return lines
    with lab.progress.step("remove what the scenarios left"):
        _switch_on(lab)
        # Pods first: a slice in use can't be removed.
        for name in _scenario_namespaces(lab):
            kubectl(lab, "delete", "namespace", name, "--ignore-not-found", "--timeout=60s")
        for machine in lab.hardware():
            repair(machine)
        for node in _choices(lab):
            kubectl(lab, "label", "node", node, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
        kubectl(lab, *common.KUBECTL_APPLY)
        _end_repairs(lab)
    return lines


def _switch_on(lab: Lab) -> None:
    """Boot the machines that are off, and wait until their nodes are Ready and offer their GPUs."""
    from kgpu.lab.embedded import ready

    folder = lab.about.folder
    if dark := manage.off(folder):
        manage.start(folder, dark)
        ready.wait_for_boots(folder, dark, WELL_S)


def _end_repairs(lab: Lab) -> None:
    """Delete the repairs once no agent calls for one any more, as the operator would ask for them anew."""
    repairs = _repairs(lab)
    until = time.monotonic() + WELL_S
    while ill := _ill(lab, set(repairs.values())):
        if time.monotonic() > until:
            raise LabError(
                f"the agent of {', '.join(ill)} still calls for a repair after {WELL_S:.0f} s",
                "GPUs without faults to be well", f"kubectl describe node {ill[0]}; then reset again",
            )  # fmt: skip
        time.sleep(_POLL_S)
    for name in repairs:
        kubectl(lab, "delete", _OPERATIONS, name, "--ignore-not-found")


def _repairs(lab: Lab) -> dict[str, str]:
    """Operations that are not over, which the operator has made because of faults, and their nodes."""
    if not kubectl(lab, "get", "customresourcedefinitions", _OPERATIONS, "--ignore-not-found", "-o", "name").strip():
        return {}
    rows = json.loads(kubectl(lab, "get", _OPERATIONS, "-o", "json"))["items"]
    return {
        row["metadata"]["name"]: row["spec"]["nodeName"]
        for row in rows
        if row["spec"].get("requestedBy") == REMEDIATION_REQUESTER and not row.get("status", {}).get("result")
    }


def _ill(lab: Lab, nodes: set[str]) -> list[str]:
    """Those of the nodes whose agent says that GPUs take no work."""
    reports = {
        node["metadata"]["name"]: gpu_report.of_node(node["metadata"].get("annotations") or {})
        for node in (json.loads(kubectl(lab, "get", "nodes", "-o", "json"))["items"] if nodes else ())
    }
    return sorted(name for name, report in reports.items() if name in nodes and report is not None and report.bad)


def repair(machine: NodeHardware) -> None:
    """Make a node's simulated hardware what it was when it was made. Raises HwError."""
    operate.clear(machine.root)
    processes.end_all(machine.root)
    operate.reset_clock(machine.root)
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
