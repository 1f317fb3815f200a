"""The order on a Node and the agent's answer: what is written is read again, and nothing malformed is obeyed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.formats.mig_request import MigLayout
from kgpu.formats.node_order import (
    MAX_BYTES,
    MAX_HOLDERS,
    ChangeResult,
    HolderPod,
    OrderedGpu,
    OrderStep,
    answer,
    change_order,
    encode,
    order,
    read_answer,
    read_order,
)

GIVEN = order(act="0b9c-1", boot="boot-1", step=OrderStep.WITHDRAW, gpus=("GPU-1", "GPU-2"))


def test_an_order_is_read_as_it_was_written() -> None:
    assert read_order({names.OPERATION_ANNOTATION: encode(GIVEN)}) == GIVEN
    assert read_order({}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"gpus": ()},
        {"gpus": ("GPU-1", "GPU-1")},
        {"gpus": tuple(f"GPU-{index}" for index in range(17))},
        {"gpus": ("",)},
        {"gpus": ("GPU-1\n",)},
        {"id": ""},
        {"id": "x" * 101},
        {"boot": ""},
    ],
)
def test_a_malformed_order_is_not_obeyed(change: dict[str, object]) -> None:
    changed = encode(msgspec.structs.replace(GIVEN, **change))
    assert read_order({names.OPERATION_ANNOTATION: changed}) is None


LAYOUTS = (MigLayout(gpu="GPU-1", enabled=True, devices={"1g.10gb": 7}), MigLayout(gpu="GPU-2", enabled=False))
CHANGE = change_order(act="0b9c-1", boot="boot-1", step=OrderStep.CHANGE, layouts=LAYOUTS, released=True)


@pytest.mark.parametrize("step", OrderStep)
def test_an_order_of_a_change_has_its_layouts_from_the_first_step_on(step: OrderStep) -> None:
    given = change_order(act="0b9c-1", boot="boot-1", step=step, layouts=LAYOUTS, released=True)
    assert read_order({names.OPERATION_ANNOTATION: encode(given)}) == given
    assert given.released is (step is OrderStep.CHANGE)


@pytest.mark.parametrize(
    "change",
    [
        {"layouts": ()},
        {"layouts": LAYOUTS[:1]},
        {"layouts": (LAYOUTS[0], LAYOUTS[0])},
        {"gpus": ("GPU-1", "GPU-3")},
        {"layouts": (LAYOUTS[1], MigLayout(gpu="GPU-1", enabled=False, devices={"1g.10gb": 1}))},
        {"layouts": (LAYOUTS[1], MigLayout(gpu="GPU-1", enabled=True, devices={"1g.10gb": 65}))},
        {"layouts": (LAYOUTS[1], MigLayout(gpu="GPU-1", enabled=True, devices={"a\nb": 1}))},
        {"layouts": (LAYOUTS[1], MigLayout(gpu="GPU-1", enabled=True, devices={f"{n}g": 1 for n in range(17)}))},
        {"exchange": True, "gpus": ()},
    ],
)
def test_a_malformed_change_is_not_obeyed(change: dict[str, object]) -> None:
    changed = encode(msgspec.structs.replace(CHANGE, **change))
    assert read_order({names.OPERATION_ANNOTATION: changed}) is None


def test_the_result_of_a_change_is_read_as_one_line() -> None:
    written = answer(CHANGE, result=ChangeResult(done=False, text="it does\nnot fit", lost=True))
    assert written.result == ChangeResult(done=False, text="it does not fit", lost=True)
    assert read_answer({names.OPERATION_REPORT_ANNOTATION: encode(written)}) == written
    forged = msgspec.structs.replace(written, result=ChangeResult(done=True, text="x\n" * 400))
    found = read_answer({names.OPERATION_REPORT_ANNOTATION: encode(forged)})
    assert found is not None
    assert found.result is not None
    assert len(found.result.text) == 300
    assert found.result.text.isprintable()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "step": "erase"}', "9" * MAX_BYTES])
def test_what_is_no_document_is_none(text: str) -> None:
    assert read_order({names.OPERATION_ANNOTATION: text}) is None
    assert read_answer({names.OPERATION_REPORT_ANNOTATION: text}) is None


def test_an_answer_is_read_as_it_was_written() -> None:
    holders = (HolderPod(namespace="team", name="train-1"), HolderPod(namespace="team", name="train-0"))
    gpus = (
        OrderedGpu(uuid="GPU-1", pci="0000:1b:00.0"),
        OrderedGpu(uuid="GPU-2", problem="the driver doesn't list it"),
    )
    written = answer(GIVEN, holders=holders, gpus=gpus)
    assert read_answer({names.OPERATION_REPORT_ANNOTATION: encode(written)}) == written
    assert [pod.name for pod in written.holders] == ["train-0", "train-1"]
    assert written.fulfils("0b9c-1", OrderStep.WITHDRAW)
    assert not written.fulfils("0b9c-2", OrderStep.WITHDRAW)
    assert not written.fulfils("0b9c-1", OrderStep.RELEASE)


def test_an_answer_that_waits_or_refuses_fulfils_nothing() -> None:
    assert not answer(GIVEN, waits="the kubelet does not answer").fulfils("0b9c-1", OrderStep.WITHDRAW)
    assert not answer(GIVEN, refused="it has MIG instances").fulfils("0b9c-1", OrderStep.WITHDRAW)


def test_holders_without_room_are_counted() -> None:
    holders = tuple(HolderPod(namespace="team", name=f"pod-{index}") for index in range(MAX_HOLDERS + 3))
    assert answer(GIVEN, holders=holders).more == 3
    assert answer(GIVEN, elsewhere=holders).elsewhere is None, "some of them would say that the others have none"
    assert answer(GIVEN, elsewhere=holders[:2]).elsewhere == holders[:2]


@given(st.text(max_size=400), st.text(max_size=400), st.text(max_size=400))
def test_an_answer_from_a_hostile_node_is_short_and_printable(act: str, why: str, name: str) -> None:
    hostile = msgspec.json.encode(
        {"version": 1, "id": act, "step": "resume", "refused": why, "holders": [{"namespace": name, "name": name}]}
    )
    read = read_answer({names.OPERATION_REPORT_ANNOTATION: hostile.decode()})
    assert read is not None
    for text in (read.id, read.refused, read.holders[0].name):
        assert len(text) <= 400
        assert not text or text.isprintable()
