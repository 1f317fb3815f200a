"""The budget as the admin writes it."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.cli.operator import budget_of, operations_config_of, remediation_of
from kgpu.formats.crd.nodeoperation import MigDrain, OperationDrain
from kgpu.operations.config import (
    GroupCap,
    MigPolicy,
    OperationBudget,
    RemediationPolicy,
    Share,
    Strongest,
    read_budget,
    read_mig,
    read_remediation,
)


def test_nothing_is_the_default() -> None:
    assert read_budget({}) == OperationBudget(max_parallel=1, max_unavailable=Share(percent=25))
    assert read_budget({"groups": None, "maxParallel": None}) == OperationBudget()


def test_everything() -> None:
    assert read_budget(
        {"maxParallel": 3, "maxUnavailable": "2", "groups": [{"label": "topology.kubernetes.io/rack"}]}
    ) == OperationBudget(
        max_parallel=3, max_unavailable=Share(2), groups=(GroupCap(label="topology.kubernetes.io/rack"),)
    )
    assert read_budget({"maxUnavailable": 2}).max_unavailable == Share(2)
    assert str(read_budget({"maxUnavailable": "10%"}).max_unavailable) == "10%"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"maxParalel": 1}, 'did you mean "maxParallel"?'),
        ({"maxParallel": -1}, "operations.maxParallel is '-1'"),
        ({"maxParallel": True}, "operations.maxParallel is 'True'"),
        ({"maxParallel": "1"}, "operations.maxParallel is '1'"),
        ({"maxUnavailable": "101%"}, "operations.maxUnavailable is '101%'"),
        ({"maxUnavailable": "a lot"}, "a share such as 25%"),
        ({"maxUnavailable": 1.5}, "operations.maxUnavailable is '1.5'"),
        ({"maxUnavailable": "٣"}, "operations.maxUnavailable"),
        ({"allowForce": "yes"}, "operations.allowForce is 'yes'; expected true or false"),
        ({"groups": "rack"}, "operations.groups is not a list"),
        ({"groups": ["rack"]}, "operations.groups[0] is 'rack'"),
        ({"groups": [{"label": "a b"}]}, "operations.groups[0].label"),
        ({"groups": [{"label": "rack", "max": 1}]}, 'operations.groups[0]: there is no key "max"'),
        ({"groups": [{"label": "rack"}] * 17}, "at most 16"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_budget(settings)
    assert said in error.value.one_line()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, RemediationPolicy()),
        ({}, RemediationPolicy(strongest=Strongest.SUGGEST, attempts=2)),
        ({"policy": False}, RemediationPolicy(strongest=Strongest.OFF)),
        ({"policy": "Off"}, RemediationPolicy(strongest=Strongest.OFF)),
        ({"policy": "Reset"}, RemediationPolicy(strongest=Strongest.RESET)),
        ({"policy": "Reboot", "attempts": 0}, RemediationPolicy(strongest=Strongest.REBOOT, attempts=0)),
        (
            {"drain": {"timeoutSeconds": 60, "force": True}},
            RemediationPolicy(drain=OperationDrain(timeout_seconds=60, force=True)),
        ),
        ({"drain": None}, RemediationPolicy()),
    ],
)
def test_what_may_be_done_by_itself(given: Any, expected: RemediationPolicy) -> None:
    assert read_remediation(given) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("Suggest", "a mapping such as"),
        ({"policy": "replace"}, "one of: Off, Suggest, Reset, Reboot, Replace"),
        ({"policy": "reboot"}, 'did you mean "Reboot"'),
        ({"policy": True}, "one of: Off, Suggest, Reset, Reboot"),
        ({"policy": ["Off"]}, "one of: Off, Suggest, Reset, Reboot"),
        ({"policies": "Off"}, "there is no key"),
        ({"attempts": -1}, "a number from 0"),
        ({"drain": {"timeout": 60}}, "there is no key"),
        ({"drain": {"timeoutSeconds": "60"}}, "spec.drain"),
        ({"drain": 7}, "spec.drain"),
        ({"drain": {"onTimeout": "force"}}, "spec.drain"),
        ({"drain": {"onTimeout": "Force"}}, "set operations.allowForce=true"),
    ],
)
def test_what_is_not_built_or_not_understood_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_remediation(given)
    assert why in refused.value.one_line()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, MigPolicy()),
        ({}, MigPolicy(drain=MigDrain.GPU, eviction=OperationDrain(timeout_seconds=3600))),
        ({"drain": None, "eviction": None}, MigPolicy()),
        ({"drain": "node"}, MigPolicy(drain=MigDrain.NODE)),
        ({"drain": "none"}, MigPolicy(drain=MigDrain.NONE)),
        ({"eviction": {"force": True}}, MigPolicy(eviction=OperationDrain(timeout_seconds=3600, force=True))),
        ({"eviction": {"timeoutSeconds": 60}}, MigPolicy(eviction=OperationDrain(timeout_seconds=60))),
    ],
)
def test_how_gpus_are_emptied_before_they_are_cut(given: Any, expected: MigPolicy) -> None:
    assert read_mig(given) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("gpu", "a mapping such as {drain: gpu}"),
        ({"drain": "gpus"}, 'did you mean "gpu"'),
        ({"drain": ["gpu"]}, "one of: node, gpu, none"),
        ({"drain": False}, "one of: node, gpu, none"),
        ({"drains": "gpu"}, "there is no key"),
        ({"eviction": {"timeout": 60}}, "there is no key"),
        ({"eviction": {"waitFor": {"podSelector": "a=b"}}}, "has waitFor"),
        ({"eviction": 7}, "operations.mig.eviction"),
        ({"eviction": {"onTimeout": "Force"}}, "set operations.allowForce=true"),
    ],
)
def test_what_is_no_way_to_empty_them_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_mig(given)
    assert why in refused.value.one_line()


def test_pods_are_deleted_past_budgets_only_where_the_admin_allows_it() -> None:
    assert not read_budget({}).allow_force
    assert not read_budget({"allowForce": None}).allow_force
    assert read_budget({"allowForce": True}).allow_force
    forced = read_remediation({"drain": {"onTimeout": "Force"}}, allow_force=True)
    assert forced.drain == OperationDrain(on_timeout="Force")


@pytest.mark.parametrize("allowed", [True, False])
def test_the_operator_reads_both_from_one_place(allowed: bool) -> None:
    options = {
        "operations": "true",
        "operations_config": f"{{allowForce: {str(allowed).lower()}, remediation: {{drain: {{onTimeout: Force}}}}}}",
    }
    config = operations_config_of(options)
    budget = budget_of(config, options)
    assert budget is not None
    assert budget.allow_force is allowed
    if allowed:
        assert remediation_of(config).drain.on_timeout == "Force"
    else:
        with pytest.raises(ConfigError, match="onTimeout is Force"):
            remediation_of(config)
