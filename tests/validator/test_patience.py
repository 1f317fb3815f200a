"""How soon the Node is looked at again while the device plugin alone is waited for."""

from __future__ import annotations

import pytest

from kgpu.formats.validation_report import CheckTrouble
from kgpu.validator.checks.plugin import NodeResources
from kgpu.validator.model import Check, CheckResult, NodeValidation, Status, waiting
from kgpu.validator.patience import Patience
from kgpu.validator.plan import lacks_the_plugin_alone
from tests.validator.test_run_again import Steps, proven, shows

WAITS = waiting(Check.PLUGIN, CheckTrouble(what="the Node has no nvidia.com resource yet"))


def test_it_is_looked_at_again_at_once_and_then_ever_later() -> None:
    patience = Patience()
    patience.with_limit(WAITS, 100.0)
    found = [patience.soon(100.0 + waited) for waited in (0, 0.5, 1, 4, 40)]
    assert found == [0.25, 0.25, 0.25, 1.0, 10.0]


def test_something_else_to_wait_for_begins_anew() -> None:
    patience = Patience()
    patience.with_limit(WAITS, 100.0)
    patience.with_limit(waiting(Check.PLUGIN, CheckTrouble(what="nvidia.com/gpu: 1 of 2")), 140.0)
    assert patience.soon(140.0) == 0.25


@pytest.mark.parametrize(
    ("states", "alone"),
    [
        ({Check.CUDA: Status.PASSED, Check.PLUGIN: Status.WAITING}, True),
        ({Check.CUDA: Status.SKIPPED, Check.PLUGIN: Status.WAITING}, True),
        ({Check.CUDA: Status.WAITING, Check.PLUGIN: Status.WAITING}, False),
        ({Check.CUDA: Status.PASSED, Check.PLUGIN: Status.FAILED}, False),
        ({Check.CUDA: Status.PASSED, Check.PLUGIN: Status.PASSED}, False),
        ({Check.CUDA: Status.FAILED}, False),
        ({}, False),
    ],
)
def test_what_it_means_that_the_plugin_alone_is_waited_for(states: dict[Check, Status], alone: bool) -> None:
    report = NodeValidation(results=tuple(CheckResult(check=check, status=status) for check, status in states.items()))
    assert lacks_the_plugin_alone(report) is alone


async def test_a_node_that_waited_long_for_all_else_sees_the_plugin_soon(tmp_path) -> None:
    """Each look before has made the usual pause longer."""
    node = Steps(tmp_path)
    node.api.node = NodeResources()
    (node.cdi / "a.json").unlink()
    for _ in range(8):
        await node.look()
        node.validator._pause()
    node.write_spec()
    await node.look()
    assert node.validator.report.result(Check.PLUGIN).status is Status.WAITING
    assert node.validator._pause() == 0.25
    node.api.node = shows(2)
    await proven(node)


@pytest.mark.parametrize("waited", [0.0, 1.0, 29.0])
def test_the_end_of_patience_is_looked_at_in_time(waited: float) -> None:
    """However long the pauses between looks have become."""
    patience = Patience()
    result = waiting(Check.TOOLKIT, CheckTrouble(what="no CDI spec"))
    patience.with_limit(result, 100.0)
    end = 100.0 + waited + patience.pause(100.0 + waited, 60.0)
    assert end == 130.0
    assert patience.with_limit(result, end).status is Status.FAILED
    assert patience.pause(end, 60.0) == 60.0
