"""The budget as the admin writes it."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.operations.config import GroupCap, OperationBudget, Share, read_budget


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
        ({"groups": "rack"}, "operations.groups is no list"),
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
