"""Golden plans: ``golden/<case>.yaml`` has a cluster under ``given`` and the whole plan for it under ``plan``.

``python -m tests.operator.golden_plans`` writes the plans anew; what changed is then read in the diff. Objects are listed by
kind, name and state: their content has golden files of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kgpu.formats import agent_report
from kgpu.operator.model import ClusterPlan, NodeLayout, ObservedCluster, OperatorSettings, PodTrouble
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.world import SETTINGS, driver, node_object, policy, report, settle

FOLDER = Path(__file__).parent / "golden"


def cases() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(case: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{case}.yaml").read_text())
    return found


def settings_of(given: Mapping[str, Any]) -> OperatorSettings:
    told = given.get("settings", {})
    return dataclasses.replace(
        SETTINGS, layout=NodeLayout(told.get("layout", "agent")), discovery=told.get("discovery", True)
    )


def observed_of(given: Mapping[str, Any]) -> ObservedCluster:
    """The cluster; with ``settled`` the plan for it has been carried out once, and all pods are well."""
    observed = ObservedCluster(
        foreign_nfd=given.get("foreignNFD", False),
        foreign_operator=given.get("foreignOperator", ""),
        policies=tuple(policy(**fields) for fields in given.get("policies", [])),
        drivers=tuple(driver(**fields) for fields in given.get("drivers", [])),
        nodes=tuple(read_node(_node(fields)) for fields in given.get("nodes", [])),
        config_maps={name: frozenset(keys) for name, keys in given.get("configMaps", {}).items()},
        troubles=tuple(PodTrouble(**fields) for fields in given.get("troubles", [])),
        failures=given.get("failures", {}),
        apply_errors=given.get("applyErrors", {}),
    )
    return settle(observed, settings_of(given)) if given.get("settled") else observed


def _node(fields: Mapping[str, Any]) -> Any:
    fields = dict(fields)
    roles = fields.pop("roles", None)
    if roles is not None:
        said = {name: agent_report.role(**role) for name, role in roles.items()}
        fields["report"] = report(gpus=fields.get("gpus", 8), **said)
    if "validated" in fields:
        fields["validated"] = tuple(fields["validated"])
    return node_object(**fields)


def shown(made: ClusterPlan) -> dict[str, Any]:
    """A plan as YAML has it; what is empty is left out."""
    whole = {
        "hold": made.hold,
        "keep": sorted(made.keep),
        "orphan": sorted(made.orphan),
        "objects": [
            f"{one['kind']}/{one['metadata']['name']} ({one['metadata']['labels']['nvidia.com/gpu-operator.state']})"
            for one in made.objects
        ],
        "nodes": {
            one.name: {
                key: value
                for key, value in (
                    ("labels", dict(sorted(one.labels.items()))),
                    ("clear", list(one.clear)),
                )
                if value
            }
            for one in made.nodes
        },
        "policyStatus": {name: _status(status) for name, status in made.policy_status.items()},
        "driverStatus": {name: _status(status) for name, status in made.driver_status.items()},
        "decisions": [f"{one.severity.value} {one.reason} {one.one_line()}" for one in made.advice],
        "metrics": {name: value for name, value in made.metrics.items() if value},
    }
    return {key: value for key, value in whole.items() if value}


def _status(status: Mapping[str, Any]) -> dict[str, Any]:
    lines = {
        one["type"]: f"{one['status']} {one['reason']}: {one['message']}".rstrip(": ") for one in status["conditions"]
    }
    return {"state": status["state"], "conditions": lines, **({"nodes": status["nodes"]} if "nodes" in status else {})}


def plan_for(case: str) -> dict[str, Any]:
    given = load(case)["given"]
    return shown(plan(observed_of(given), settings_of(given)))


def main() -> None:
    for case in cases():
        found = {**load(case), "plan": plan_for(case)}
        text = yaml.safe_dump(found, sort_keys=False, width=118, allow_unicode=True)
        (FOLDER / f"{case}.yaml").write_text(text)


if __name__ == "__main__":
    main()
