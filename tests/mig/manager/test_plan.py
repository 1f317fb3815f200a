"""What becomes of the label, row by row."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kgpu.base.errors import UserError
from kgpu.formats import mig_request, names
from kgpu.formats.mig_config import parse_mig_configs
from kgpu.formats.mig_default_configs import default_configs
from kgpu.formats.mig_request import MigLabelState, MigLayout, MigProgress
from kgpu.hw.fake_partitioner import WITHOUT_MIG, FakePartitioner
from kgpu.hw.partitioning import CutCompute, CutInstance
from kgpu.mig.manager.configs import ConfigLookup
from kgpu.mig.manager.label import node_part, read_view
from kgpu.mig.manager.layouts import key_of
from kgpu.mig.manager.model import MigDecision, MigLabelledNode, MigReason, MigWish
from kgpu.mig.manager.plan import Known, RefusedWishError, changed_under, decide, two_labels
from kgpu.mig.manager.slices import LABEL, aim
from kgpu.mig.survey import SurveyedGpu, survey
from kgpu.mig.wanted import LayoutError

FILE = """
version: v1
mig-configs:
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  second: [{devices: [1], mig-enabled: true, mig-devices: {1g.5gb: 7}}]
  ninth: [{devices: [0, 9], mig-enabled: true, mig-devices: {7g.40gb: 1}}]
  only-ninth: [{devices: [9], mig-enabled: true, mig-devices: {7g.40gb: 1}}]
  h100s: [{device-filter: "0x233010DE", devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  names: [{device-filter: A100-SXM4-40GB, devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]
  unknown: [{devices: all, mig-enabled: true, mig-devices: {1g.99gb: 1}}]
  too-much: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 4, 2g.10gb: 2}}]
  zeros: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7, 2g.10gb: 0}}]
  all-off: [{devices: all, mig-enabled: false}]
"""
CONFIGS = parse_mig_configs(FILE).configs
ASKED = Known(operations=True)
UUIDS = tuple(f"GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(2))


def wish(value: str, **more: Any) -> MigWish:
    return MigWish(**{"value": value, "stamp": "7", "boot": "b", **more})


def view(value: str, **more: Any) -> MigLabelledNode:
    return MigLabelledNode(**{"uid": "u", "value": value, **more})


def gpus(*families: str, **changes: Any) -> list[SurveyedGpu]:
    """GPUs of these families; ``changes`` are those of what the driver reads of each."""
    driver = FakePartitioner(*(families or ("a100-40gb", "a100-40gb")))
    return [survey(replace(gpu, **changes)) for gpu in driver.state.values()]


def seven(family: str = "a100-40gb") -> dict[str, Any]:
    """A GPU of which one GPU instance takes all."""
    driver = FakePartitioner(family)
    row = next(row for row in next(iter(driver.geometries.values())).rows if row.slices == 7)
    compute = (CutCompute(id=0, profile=4, start=0),)
    whole = CutInstance(id=0, profile=row.enum, start=0, compute=compute)
    return {"enabled": True, "pending": True, "instances": (whole,)}


def decided(value: str, found: list[SurveyedGpu] | None = None, known: Known = ASKED, **more: Any) -> MigDecision:
    return decide(view(value, **more), wish(value), known, aim(found or gpus(), value, CONFIGS[value]), LABEL)


def progress(key: str, phase: str, message: str = "") -> MigProgress:
    return mig_request.progress(key=key, operation="mig-gpu-1-abc", phase=phase, message=message)


# What is asked for


def test_what_has_to_change_is_asked_of_the_operator() -> None:
    decision = decided("halves")
    assert (decision.state, decision.reason) == (MigLabelState.PENDING, MigReason.REQUESTED)
    assert decision.request is not None
    assert decision.request.layouts == tuple(
        MigLayout(gpu=uuid, enabled=True, devices={"3g.20gb": 2}) for uuid in UUIDS
    )
    assert decision.request.release  # an Ampere's mode needs a reset
    assert mig_request.is_sound(decision.request)


def test_gpus_that_no_entry_is_about_are_not_in_the_request() -> None:
    request = decided("second").request
    assert request is not None
    assert [layout.gpu for layout in request.layouts] == [UUIDS[1]]


def test_a_hopper_needs_no_reset() -> None:
    found = gpus("h100-80gb")
    request = decided("h100s", found).request
    assert request is not None
    assert not request.release


def test_the_id_stays_while_gpus_become_as_wanted_and_is_another_for_each_time() -> None:
    first = decided("halves").key
    planned = aim(gpus(), "halves", CONFIGS["halves"]).plans
    assert first == key_of(wish("halves"), planned)
    half_way = aim([gpus(enabled=True, pending=True)[0], gpus()[1]], "halves", CONFIGS["halves"]).plans
    assert key_of(wish("halves"), half_way) == first
    others = [wish("halves", stamp="8"), wish("halves", boot="c"), wish("halves", losses=1), wish("second")]
    assert len({first, *(key_of(one, planned) for one in others)}) == 5
    assert key_of(wish("halves"), aim(gpus(), "zeros", CONFIGS["zeros"]).plans) != first  # the file has changed


def test_nothing_to_do_is_success_and_touches_nothing() -> None:
    decision = decided("all-off")
    assert (decision.state, decision.reason, decision.request) == (MigLabelState.SUCCESS, MigReason.APPLIED, None)
    assert decision.settled


def test_a_count_of_0_equals_its_own_result() -> None:
    # mig-parted compares the lengths of maps, so that such a config is never applied for it.
    planned = aim(gpus(), "zeros", CONFIGS["zeros"]).plans
    assert [one.layout.devices for one in planned] == [{"1g.5gb": 7}] * 2


def test_missing_indexes_are_told_where_others_are_cut() -> None:
    whole = gpus(**seven())
    decision = decided("ninth", whole)
    assert decision.state is MigLabelState.SUCCESS
    assert decision.message == "the node has no GPU 9, which the config names"


# What is refused before anything changes


REFUSED = [
    ("unknown", (), LayoutError, "has no MIG profile 1g.99gb"),
    ("too-much", (), LayoutError, "of these at most"),
    ("only-ninth", (), RefusedWishError, 'the config "only-ninth" is about no GPU of this node that has MIG'),
    ("h100s", (), RefusedWishError, "the node's GPUs are: NVIDIA A100-40GB"),
    ("names", (), RefusedWishError, "is about no GPU"),
    ("halves", (WITHOUT_MIG,), RefusedWishError, "is about no GPU"),
]


@pytest.mark.parametrize(("value", "families", "kind", "words"), REFUSED)
def test_what_can_not_be_had_is_refused_in_three_parts(
    value: str, families: tuple[str, ...], kind: type[UserError], words: str
) -> None:  # fmt: skip
    with pytest.raises(kind) as refused:
        decided(value, gpus(*families))
    assert words in refused.value.one_line()
    assert all((refused.value.what, refused.value.expected, refused.value.remedy))


def test_no_mig_at_all_is_what_all_disabled_asks_of_gpus_without_it() -> None:
    assert decided("all-off", gpus(WITHOUT_MIG)).state is MigLabelState.SUCCESS


def test_gpus_without_mig_beside_others_are_left_alone() -> None:
    # NVIDIA's manager asserts on them, boots the node anew, and fails then.
    request = decided("halves", gpus("a100-40gb", WITHOUT_MIG)).request
    assert request is not None
    assert [layout.gpu for layout in request.layouts] == [UUIDS[0]]


@pytest.mark.parametrize("key", ["nvidia.com/vgpu.config", "nos.nebuly.com/gpu-partitioning"])
def test_two_labels_for_the_same_gpus_are_refused(key: str) -> None:
    node = {"metadata": {"name": "n", "labels": {names.MIG_CONFIG_LABEL: "halves", key: "x"}}}
    found = two_labels(read_view(node_part(node, LABEL), "b", LABEL), LABEL)
    assert found is not None
    assert (names.MIG_CONFIG_LABEL in found.what, key in found.what) == (True, True)
    del node["metadata"]["labels"][key]  # type: ignore[attr-defined]
    assert two_labels(read_view(node_part(node, LABEL), "b", LABEL), LABEL) is None


# Who has set the label


def labelled(*managers: str, value: str = "all-off", default: str = "") -> MigLabelledNode:
    fields = {"f:metadata": {"f:labels": {f"f:{names.MIG_CONFIG_LABEL}": {}}}}
    metadata: dict[str, Any] = {
        "name": "n", "uid": "u", "resourceVersion": "3", "labels": {names.MIG_CONFIG_LABEL: value, "x": "y"},
        "annotations": {names.MIG_DEFAULT_ANNOTATION: default, "z": "1"} if default else {},
        "managedFields": [{"manager": one, "operation": "Apply", "fieldsV1": fields} for one in managers],
    }  # fmt: skip
    kept = node_part({"metadata": metadata, "status": {"images": []}}, LABEL)
    assert "x" not in kept["metadata"]["labels"]
    assert "status" not in kept
    return read_view(kept, "b", LABEL)


WRITERS = [
    (("kgpu-operator",), "", False),
    (("gpu-operator",), "", False),
    (("kgpu-operator",), "all-off", True),
    (("kgpu-operator",), "all-balanced", False),
    (("kubectl-label",), "", True),
    (("kgpu-operator", "kubectl-edit"), "", True),
    ((), "", True),
]


@pytest.mark.parametrize(("managers", "default", "acts"), WRITERS)
def test_only_a_value_that_somebody_means_acts(managers: tuple[str, ...], default: str, acts: bool) -> None:
    found = labelled(*managers, default=default)
    assert found.acts is acts
    decision = decide(found, wish("all-off"), ASKED, aim(gpus(**seven()), "all-off", CONFIGS["all-off"]), LABEL)
    if acts:
        assert decision.request is not None
        return
    assert (decision.state, decision.reason) == (MigLabelState.SUCCESS, MigReason.ADOPTED)
    assert (decision.request, decision.apply, decision.settled) == (None, (), False)
    assert "1 of 7g.40gb" in decision.message
    assert "set the label nvidia.com/mig.config to nothing, and then to the config" in decision.message


# While an operation is under way, and after it


def test_the_operations_words_are_passed_on() -> None:
    key = decided("halves").key
    why = "PodDisruptionBudget team/trainer allows no eviction of team/trainer-0"
    decision = decided("halves", progress=progress(key, "Draining", why))
    assert (decision.state, decision.reason) == (MigLabelState.PENDING, MigReason.UNDER_WAY)
    assert why in decision.message
    assert decision.request is not None


@pytest.mark.parametrize("phase", ["Complete", "Failed"])
def test_what_an_operation_has_not_reached_is_failed_and_not_asked_again(phase: str) -> None:
    key = decided("halves").key
    decision = decided("halves", progress=progress(key, phase, "the budget is used up"))
    assert (decision.state, decision.reason, decision.request) == (MigLabelState.FAILED, MigReason.OPERATION, None)
    assert "the budget is used up" in decision.message
    assert "set the label nvidia.com/mig.config to nothing, and then to the config" in decision.message


def test_another_wish_is_asked_for_whatever_became_of_the_one_before() -> None:
    decision = decided("halves", progress=progress("of-the-one-before", "Failed", "no"))
    assert decision.request is not None


def test_success_is_said_when_the_gpus_are_offered_again() -> None:
    found = gpus(**seven())
    fulfilled = decided("ninth", found)
    verifying = decided("ninth", found, progress=progress(fulfilled.key, "Verifying"))
    assert (verifying.state, verifying.settled) == (MigLabelState.PENDING, False)
    over = decided("ninth", found, progress=progress(fulfilled.key, "Complete"))
    assert (over.state, over.settled) == (MigLabelState.SUCCESS, True)


# What has changed since it was fulfilled


def test_what_somebody_cuts_by_hand_afterwards_stays() -> None:
    key = decided("halves", gpus(**seven())).key
    decision = decided("halves", gpus(**seven()), Known(operations=True, settled=key))
    assert (decision.state, decision.reason) == (MigLabelState.SUCCESS, MigReason.CHANGED_SINCE)
    assert decision.request is None
    assert "1 of 7g.40gb" in decision.message


def test_pods_whose_parts_are_gone_are_named_first_and_looked_for_again() -> None:
    key = decided("halves", gpus(**seven())).key
    decision = decided("halves", gpus(**seven()), Known(operations=True, settled=key))
    assert changed_under(decision, ()) == decision
    told = changed_under(decision, [f"team/train-{number}" for number in range(9)])
    assert told.message.startswith("pods hold parts that are gone, and have to be ended: team/train-0, ")
    assert "and 1 more; halves was applied" in told.message
    assert (len(told.pods), told.again, told.state) == (9, True, MigLabelState.SUCCESS)


def test_slices_that_are_all_gone_are_lost() -> None:
    found = gpus(enabled=True, pending=True)
    key = decided("halves", found).key
    assert decided("halves", found, Known(operations=True, settled=key)).lost
    assert decided("halves", gpus(), Known(operations=True, settled=key)).lost  # a Hopper's mode goes with the driver


# Without kgpu's operator


def test_alone_it_applies_to_gpus_that_nobody_uses() -> None:
    decision = decided("halves", known=Known())
    assert (decision.state, decision.request) == (MigLabelState.PENDING, None)
    assert [one.gpu for one in decision.apply] == list(UUIDS)


def test_alone_it_fails_naming_the_holders_and_looks_again() -> None:
    held = {UUIDS[0]: ("pod team/train-0", *(f"process {pid}" for pid in range(9))), UUIDS[1]: ()}
    decision = decided("halves", known=Known(holders=held))
    assert (decision.state, decision.reason, decision.apply, decision.again) == (
        MigLabelState.FAILED, MigReason.IN_USE, (), True,
    )  # fmt: skip
    assert "GPU 0 (NVIDIA A100-40GB) by pod team/train-0, process 0" in decision.message
    assert "and 2 more" in decision.message
    assert decided("second", known=Known(holders=held)).apply  # of a GPU that nobody uses


def test_alone_what_has_failed_is_not_tried_for_ever() -> None:
    key = decided("halves").key
    problem = UserError("the driver refuses", "a driver that takes it", "look")
    decision = decided("halves", known=Known(tried={key: problem}))
    assert (decision.state, decision.reason, decision.apply) == (MigLabelState.FAILED, MigReason.FAILED, ())
    assert "the driver refuses" in decision.message


# Where configs come from


class Text:
    def __init__(self, text: str, problem: UserError | None = None) -> None:
        from kgpu.formats.config_choice import ConfigText, problem_text

        self.text = problem_text("file f", problem) if problem is not None else ConfigText(name="file f", text=text)

    def current(self) -> Any:
        return self.text


MISSING = Text("", UserError("can't read the config file", "a file", "make it"))


def test_the_first_file_that_can_be_read_counts() -> None:
    lookup = ConfigLookup(given=(MISSING, Text(FILE)))  # type: ignore[arg-type]
    assert lookup.choose("halves", gpus()).entries == CONFIGS["halves"]
    with pytest.raises(UserError, match="selected mig-config not present: all-balanced") as refused:
        lookup.choose("all-balanced", gpus())
    assert "halves" in refused.value.expected
    with pytest.raises(UserError, match="can't read"):
        ConfigLookup(given=(MISSING,)).choose("halves", gpus())  # type: ignore[arg-type]


def test_without_a_file_configs_are_made_for_the_nodes_gpus() -> None:
    chosen = ConfigLookup().choose("all-1g.5gb", gpus())
    assert chosen.entries[0].profiles[0][1] == 7
    assert "all-balanced" in chosen.generated
    with pytest.raises(UserError, match="not present"):
        ConfigLookup().choose("halves", gpus())


def test_the_defaults_are_asked_for_what_was_not_made() -> None:
    lookup = ConfigLookup(defaults=(Text(FILE),))  # type: ignore[arg-type]
    assert lookup.choose("halves", gpus()).entries == CONFIGS["halves"]
    assert lookup.choose("all-1g.5gb", gpus()).entries != ()
    every = ConfigLookup(defaults=(Text(json.dumps(default_configs())),))  # type: ignore[arg-type]
    assert every.choose("all-1g.10gb", gpus(WITHOUT_MIG)).generated == ""


def test_a_filter_that_can_not_match_is_told() -> None:
    chosen = ConfigLookup(given=(Text(FILE),)).choose("halves", gpus())  # type: ignore[arg-type]
    assert ["A100-SXM4-40GB" in warning for warning in chosen.warnings] == [True]
