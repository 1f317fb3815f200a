"""A role is its component's folder, a file in each of two packages and a row: who else knows one by its name is here.

The lists are reviewed: a module comes in only with a reason why the knowledge is not the role's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kgpu
from kgpu.agent.roles import ROLES

SRC: Final = Path(kgpu.__file__).parent
COMPONENTS: Final = {
    "labels": "discovery", "features": "discovery", "mig-manager": "mig", "device-config-manager": "mig", "node-status": "validator", "probe": "doctor",
}  # fmt: skip
"""Roles whose component has another name."""

KNOWN: Final = {
    "deviceplugin": {
        "agent/host.py": "its flags say where the driver is, for every role that reads it; a role may not run beside it",
        "agent/roles/validator.py": "a check that the GPUs are offered is skipped where the plugin is switched off",
        "cli/agent.py": "a role that an agent has without --roles, and whose flags are its own",
    },
    "labels": {"cli/agent.py": "a role that an agent has without --roles, and whose flags are its own"},
    "toolkit": {
        "agent/role_options.py": "the validator looks for CDI specs where the toolkit is to write them",
        "operator/operands/validator.py": "the same, for a validator in a pod of its own",
    },
    "validator": {
        "agent/role_options.py": "who waits for its results has their folder where it is to run",
        "agent/host.py": "nothing is handed out before the validator allows it",
        "operator/operands/deviceplugin.py": "the same, for a device plugin in a pod of its own",
    },
}
"""Modules that mean the role, by role."""

OTHERWISE: Final = {
    "dra": {
        "advise/": "a way of sharing",
        "agent/roles/usage.py": "an option of the exporter's",
        "cli/dra.py": "the command's name",
        "cli/main.py": "the command's name",
        "exporter/options.py": "a value of an option",
        "cli/operator.py": "an option of the operator",
        "formats/names.py": "a value of a node label",
    },
    "exporter": {
        "cli/exporter.py": "the command's name",
        "cli/main.py": "the command's name",
        "cli/top.py": "an option of `kgpu top`",
        "formats/programs.py": "the command's name",
    },
    "features": {
        "cli/cdi.py": "feature flags of CDI",
        "cli/features.py": "the command's name, and a field of a NodeFeature",
        "cli/main.py": "the command's name",
        "cli/nfd.py": "a command's name",
        "host/engines/docker.py": "a key of Docker's config",
        "lab/nodes/objects.py": "a field of a Node's status",
    },
    "health": {
        "cli/health.py": "the command's name",
        "cli/main.py": "the command's name",
        "cli/operator.py": "an option of the operator",
        "cli/_status_table.py": "a column",
        "manager/run.py": "the pages for probes",
        "operator/objects/containers.py": "the name of the port for probes",
        "lab/nodes/claims.py": "a field of a pod's status",
        "top/report.py": "a GPU's health",
        "top/sorts.py": "a GPU's health",
        "overview/lists.py": "a way to sort, as of top",
        "overview/model.py": "a way to sort, as of top",
        "overview/pieces.py": "a way to sort, as of top",
    },
    "mig-manager": {
        "doctor/": "a container's name, that of the replaced program",
        "drivermanager/": "the end of a Node label",
        "operator/labels.py": "the end of a Node label",
    },
    "mps": {
        "advise/": "a way of sharing",
        "agent/claim_sharing.py": "a folder, of the daemons of claims",
        "discovery/model.py": "a way of sharing",
        "doctor/": "a key of the device plugin's config",
        "formats/plugin_config.py": "a key of the device plugin's config",
        "formats/plugin_config_parse.py": "the same",
        "formats/usage.py": "a way of sharing",
        "hw/": "how a process uses a GPU",
    },
    "probe": {
        "hw/simulator/container_settings.py": "a phase of a driver's container",
        "hw/simulator/driver_image.py": "a phase of a driver's container",
        "lab/nodes/host.py": "a container's probe",
        "lab/nodes/runtime.py": "a container's probe",
    },
    "toolkit": {
        "cli/_preflight_intent.py": "the toolkit's section of values",
        "doctor/": "a check of the validator, and the toolkit's section of the policy",
        "formats/releases.py": "a component of the replaced operator's releases",
        "monitoring/alerts.py": "a check of the validator",
        "validator/model.py": "a check of the validator",
    },
    "usage": {
        "cli/main.py": "the command's name",
        "cli/operator.py": "an option of the operator",
        "cli/usage.py": "the command's name",
        "lab/embedded/controllers/hpa_metrics.py": "a field of a PodMetrics",
        "lab/embedded/usage.py": "a field of a NodeMetrics",
    },
    "validator": {"doctor/": "a container's name, and the validator's section of the policy"},
    "labels": dict.fromkeys(
        (
            "advise/", "agent/orders.py", "cli/_status_vendors.py", "cli/crds.py", "cli/features.py", "cli/lab_node.py",
            "cli/monitoring.py", "cli/nfd.py", "doctor/", "drivermanager/", "exporter/", "fit/",
            "formats/", "kube/", "lab/", "mig/", "monitoring/", "operations/", "operator/applying.py",
            "operator/cleanup.py", "operator/cluster_reading.py", "operator/labelling.py", "operator/node_selectors.py",
            "operator/nodes.py", "operator/objects/", "operator/other_programs.py", "operator/projections.py",
            "operator/rendering/render.py", "operator/survey.py", "operator/watching.py", "placement/", "top/find.py",
            "usage/",
        ),
        "the labels in an object's metadata",
    ) | {"cli/labels.py": "the command's name", "cli/main.py": "the command's name"},
}  # fmt: skip
"""Modules, and packages with a slash, in which the word means something else."""


def who_knows(role: str) -> Iterator[str]:
    """The modules that have the name as a string, but for the role's own."""
    name = role.replace("-", "_")
    own = {f"agent/roles/{name}.py", f"operator/operands/{name}.py", "formats/operands.py"}
    for path in sorted(SRC.rglob("*.py")):
        module = path.relative_to(SRC).as_posix()
        if module in own or module.startswith(f"{COMPONENTS.get(role, role)}/"):
            continue
        text = path.read_text()
        if role in text and any(
            isinstance(node, ast.Constant) and node.value == role for node in ast.walk(ast.parse(text))
        ):
            yield module


def listed(module: str, entries: dict[str, str]) -> list[str]:
    return [entry for entry in entries if module == entry or (entry.endswith("/") and module.startswith(entry))]


@pytest.mark.parametrize("role", [role.name for role in ROLES])
def test_nobody_else_knows_a_role_by_its_name(role: str) -> None:
    known, otherwise = KNOWN.get(role, {}), OTHERWISE.get(role, {})
    modules = set(who_knows(role))
    meant = {module for module in modules if not listed(module, otherwise)}
    assert meant == known.keys()
    used = {entry for module in modules for entry in listed(module, otherwise)}
    assert used == otherwise.keys()  # an entry that nothing needs any more hides the next one


def test_few_modules_know_any() -> None:
    assert max(map(len, KNOWN.values())) <= 3
    assert set(KNOWN) | set(OTHERWISE) <= {role.name for role in ROLES}
