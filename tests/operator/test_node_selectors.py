"""DaemonSets are found by index, with the same result as one by one, and planning is linear in their number."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.operator.model import ObservedCluster
from kgpu.operator.node_selectors import BySelector
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.world import SETTINGS, driver, node_object, policy

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]))


@given(st.dictionaries(st.sampled_from("ABCDEF"), LABELS), LABELS)
def test_the_index_finds_what_matches(selectors: dict[str, dict[str, str]], labels: dict[str, str]) -> None:
    matching = [name for name, one in selectors.items() if all(labels.get(key) == one[key] for key in one)]
    assert BySelector(selectors).of(labels) == sorted(matching)


PRECOMPILED = {"usePrecompiled": True, "repository": "example.org", "image": "driver", "version": "580"}


def fleet(count: int, *, by_object: bool) -> ObservedCluster:
    """Every node has a kernel of its own, so that there is a driver DaemonSet for each."""
    nodes = tuple(
        read_node(node_object(f"n{index}", labels={names.NFD_KERNEL_FULL: f"6.8.{index}", "pool": f"p{index % 10}"}))
        for index in range(count)
    )
    spec: dict[str, Any] = {"driver": {"enabled": True, "useNvidiaDriverCRD": True} if by_object else PRECOMPILED}
    drivers = tuple(
        driver(f"d{index}", spec={"usePrecompiled": True, "version": "580", "nodeSelector": {"pool": f"p{index}"}})
        for index in range(10 if by_object else 0)
    )
    return ObservedCluster(nodes=nodes, policies=(policy(spec=spec),), drivers=drivers)


def calls_of(observed: ObservedCluster) -> int:
    count = 0

    def called(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        made = plan(observed, SETTINGS)
    finally:
        sys.setprofile(None)
    assert sum(one["kind"] == "DaemonSet" for one in made.objects) >= len(observed.nodes)
    return count


@pytest.mark.parametrize("by_object", [False, True])
def test_work_grows_with_the_number_of_driver_pools_and_not_with_its_square(*, by_object: bool) -> None:
    few, many = (calls_of(fleet(count, by_object=by_object)) for count in (50, 400))
    assert many < 8 * few * 1.1
