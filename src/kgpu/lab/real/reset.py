"""What experiments and interrupted scenarios left in a lab, and putting it back to how ``up`` made it.

That is: simulated faults, MIG slices, the scenarios' namespaces, the node's label for its configuration and the
ConfigMap behind it. Everything else that somebody put into the cluster is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.hw.fake import mig, operate
from kgpu.lab.real import bootstrap
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME
from kgpu.lab.real.plan import CONFIG_MAP
from kgpu.lab.scenarios import model


def hardware_leftovers(snapshot: Mapping[str, Any]) -> list[str]:
    """What is not as in a new simulated node, one line per GPU and fact."""
    lines = [f"the node's driver: {fault}" for fault in snapshot["faults"]]
    for gpu in snapshot["gpus"]:
        faults = list(gpu["faults"])
        if not faults and gpu["recovery_action"] != "none":
            faults = [f"recovery action {gpu['recovery_action']}"]
        lines += [f"GPU {gpu['index']}: {fault}" for fault in faults]
        if gpu["mig"]["enabled"] or gpu["mig"]["devices"]:
            lines.append(f"GPU {gpu['index']}: MIG is on, {len(gpu['mig']['devices'])} slices")
    return lines


def namespaces(existing: Iterable[str]) -> list[str]:
    """Those among the ``existing`` namespaces that belong to the scenarios that come with kgpu."""
    ours = {f"demo-{name}" for name in model.bundled()}
    return [name for name in existing if name in ours]


def leftovers(lab: RealLab) -> list[str]:
    """What a scenario would stumble over, in words; empty in a lab as ``up`` made it. Raises LabError."""
    lines = hardware_leftovers(operate.snapshot(lab.hw_root))
    choice = lab.node()["metadata"].get("labels", {}).get(DEVICE_PLUGIN_CONFIG_LABEL)
    if choice is not None:
        lines.append(f"node {NODE_NAME}: label {DEVICE_PLUGIN_CONFIG_LABEL}={choice}")
    if not _config_is_original(lab):
        lines.append(f"ConfigMap {CONFIG_MAP}: not as the lab made it")
    return lines + [f"namespace {name}" for name in _scenario_namespaces(lab)]


def reset(lab: RealLab) -> list[str]:
    """Put the lab back to how ``up`` made it; what was found and done away with. Raises LabError, HwError."""
    found = leftovers(lab)
    if not found:
        return found
    with lab.progress.step("remove what the scenarios left"):
        # Pods first: a slice in use can't be removed.
        for name in _scenario_namespaces(lab):
            lab.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=60s")
        operate.clear(lab.hw_root)
        for gpu in operate.snapshot(lab.hw_root)["gpus"]:
            if gpu["mig"]["enabled"] or gpu["mig"]["devices"]:
                mig.disable(lab.hw_root, gpu["index"])
        lab.kubectl("label", "node", NODE_NAME, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
        bootstrap.apply_objects(lab)
    return found


def _config_is_original(lab: RealLab) -> bool:
    namespace, _, name = CONFIG_MAP.partition("/")
    ours = next(
        item["data"]
        for item in yaml.safe_load_all(bootstrap.OBJECTS.read_text())
        if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    )
    done = lab.kubectl_run("get", "configmap", name, "--namespace", namespace, "-o", "json")
    return done.returncode == 0 and json.loads(done.stdout).get("data") == ours


def _scenario_namespaces(lab: RealLab) -> list[str]:
    items = json.loads(lab.kubectl("get", "namespaces", "-o", "json"))["items"]
    return namespaces(item["metadata"]["name"] for item in items)
