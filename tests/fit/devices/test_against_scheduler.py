"""kube-scheduler's own allocator is asked about the same clusters: small ones for each feature, and random ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.budget import count
from tests.fit.devices import oracle, table
from tests.fit.devices.generate import Clusters, Json

SEED = "devices"


@pytest.mark.parametrize("row", table.rows(), ids=lambda row: row["name"])
def test_each_feature_is_decided_as_expected(row: Json) -> None:
    assert table.shortly(oracle.ours(table.case(row))) == row["expect"]


def test_each_feature_is_decided_as_the_scheduler_does(scheduler: oracle.Oracle) -> None:
    """To the last field of ``status.allocation``."""
    for row in table.rows():
        case = table.case(row)
        assert oracle.ours(case) == scheduler.ask(case)[0], row["name"]


@pytest.mark.timeout(3000)
def test_random_clusters_are_decided_as_the_scheduler_does(scheduler: oracle.Oracle) -> None:
    """The scheduler visits pools in random order: its answer is one of those for all orders."""
    clusters = Clusters(SEED)
    seen: Counter[str] = Counter()
    for number in range(count(300, 10_000)):
        case = clusters.case()
        ours: list[Any] = list(oracle.in_all_orders(case))
        for theirs in scheduler.ask(case, times=1 if len(case["Slices"]) < 2 else 2):
            seen[theirs if isinstance(theirs, str) else "none" if theirs is None else "allocated"] += 1
            unknown = oracle.LATE in ours or theirs in (oracle.CRASHED, oracle.LATE)
            seen["compared"] += not unknown
            assert unknown or theirs in ours, f"case {number} of seed {SEED}"
    assert seen["compared"] > 0.9 * (sum(seen.values()) - seen["compared"])
    assert min(seen["allocated"], seen["none"], seen["fault"], seen["fault on the node"]) > 5
