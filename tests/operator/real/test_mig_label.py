"""The label ``nvidia.com/mig.config`` on a real cluster: slices for a real kubelet, beside pods in real containers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from kgpu.formats.names import MIG_CONFIG_STATE_LABEL
from kgpu.hw.simulator import operate
from tests.operator.real.conftest import Site
from tests.operator.real.cutting import GPU, SLICE, ask, is_done, offered, report, run, running, to_be_cut


@pytest.fixture(scope="module")
def sliced(site: Site) -> Iterator[Site]:
    with to_be_cut(site):
        yield site


def test_the_label_becomes_56_slices(sliced: Site) -> None:
    ask(sliced, "all-1g.10gb")
    began = time.monotonic()
    sliced.until(lambda: offered(sliced) == {SLICE: 56}, "56 slices")
    print(f"from the label to 56 slices that pods can have: {time.monotonic() - began:.1f} s")
    sliced.until(lambda: is_done(sliced, "all-1g.10gb"), "it to be told")
    assert "MIG 1g.10gb" in run(sliced, "slice", SLICE)
    sliced.lab.kubectl("delete", "deployment", "slice", "--wait")
    ask(sliced, "all-disabled")
    sliced.until(lambda: offered(sliced) == {GPU: 8}, "whole GPUs")
    sliced.until(lambda: is_done(sliced, "all-disabled"), "it to be told")


def test_only_the_pod_on_the_gpu_that_is_cut_goes_once_its_budget_lets_it(sliced: Site) -> None:
    uuid = operate.snapshot(sliced.lab.hw_root)["gpus"][1]["uuid"]
    seen = {name: run(sliced, name, GPU) for name in (f"train-{number}" for number in range(8))}
    (goes,) = (name for name, said in seen.items() if uuid in said)
    before = {name: running(sliced, name) for name in seen}
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "never"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": goes}}},
    }  # fmt: skip
    sliced.lab.kubectl("apply", "-f", "-", stdin=json.dumps(budget))
    ask(sliced, "one-cut")
    sliced.until(lambda: (told := report(sliced)) is not None and "never" in told.message, "the budget to be named")
    assert sliced.node_labels()[MIG_CONFIG_STATE_LABEL] == "pending"
    assert {name: running(sliced, name) for name in seen} == before
    sliced.lab.kubectl("delete", "pdb", "never")
    sliced.until(lambda: offered(sliced) == {GPU: 7, SLICE: 7}, "GPU 1 to be cut")
    sliced.until(lambda: is_done(sliced, "one-cut"), "it to be told")
    after = {name: running(sliced, name) for name in seen}
    assert {name for name in seen if after[name] != before[name]} == {goes}
    assert not sliced.lab.node()["spec"].get("unschedulable")
