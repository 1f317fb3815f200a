"""Which roles run, from every document and every set of labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent.role_decisions import DISABLED, LEAVING, labels_that_count, string_map, wanted_roles, why_stopped
from kgpu.formats.agent_config import AgentConfig, NodeKind, RoleConfig, of_node
from kgpu.formats.names import LABEL_VENDOR

KNOWN = ("features", "labels", "deviceplugin")
words = st.sampled_from(["a", "b", ""])
roles = st.dictionaries(
    st.sampled_from([*KNOWN, "later"]),
    st.builds(RoleConfig, enabled=st.booleans(), label=words, where=words),
    max_size=4,
)
labels = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["true", "True", "", "false", "paused"]))


@given(roles, labels, st.booleans())
def test_a_role_runs_exactly_where_it_is_named_enabled_known_and_labelled_true(roles, labels, leaving):
    config = AgentConfig(roles=roles, leaving=leaving)
    for name, wanted in wanted_roles(config, labels, KNOWN).items():
        told = roles.get(name)
        keys = [key for key in (told.label, told.where) if key] if told is not None else []
        labelled = all(labels.get(key) == "true" for key in keys)
        assert wanted.run == (not leaving and told is not None and told.enabled and name in KNOWN and labelled)
        assert bool(wanted.why and wanted.reason) == (not wanted.run)


@given(roles, labels)
def test_every_role_has_an_answer(roles, labels):
    assert set(wanted_roles(AgentConfig(roles=roles), labels, KNOWN)) == {*KNOWN, *roles}


@given(roles, labels)
def test_the_labels_that_count_give_the_same_answers(roles, labels):
    config = AgentConfig(roles=roles)
    assert wanted_roles(config, labels_that_count(config, labels), KNOWN) == wanted_roles(config, labels, KNOWN)


OTHER = {LABEL_VENDOR: "amd", "a": "true"}
KINDS = {"amd": NodeKind(title="AMD", roles={"labels": RoleConfig(label="a", env={"X": "1"})})}
EACH = {name: RoleConfig(label="a" if name != "features" else "") for name in (*KNOWN, "validator")}


def test_a_node_of_another_vendor_runs_what_serves_that_vendor_and_what_looks_for_boards():
    config = AgentConfig(roles=EACH, kinds=KINDS)
    wanted = wanted_roles(config, OTHER, (*KNOWN, "validator"))
    assert {name for name, one in wanted.items() if one.run} == {"features", "labels"}
    assert {one.why for one in wanted.values() if not one.run} == {"NotForVendor"}
    assert wanted["validator"].reason == "it has nothing to do for accelerators of AMD"
    assert why_stopped(config, OTHER, "validator") == wanted["validator"].reason
    assert of_node(config, OTHER).roles["labels"].env == {"X": "1"}
    assert of_node(config, {"a": "true"}) == config, "NVIDIA's nodes are as ever"


def test_a_vendor_of_which_the_operator_has_not_said_anything_yet_waits():
    wanted = wanted_roles(AgentConfig(roles=EACH), OTHER, KNOWN)
    assert {name for name, one in wanted.items() if one.run} == {"features"}
    assert "has not said yet" in wanted["labels"].reason


def test_a_role_that_is_switched_off_for_a_vendor_is_off():
    off = {"amd": NodeKind(title="AMD", roles={"labels": RoleConfig(enabled=False)})}
    assert wanted_roles(AgentConfig(roles=EACH, kinds=off), OTHER, KNOWN)["labels"] == DISABLED


def test_leaving_is_over_everything():
    config = AgentConfig(roles={"labels": RoleConfig(enabled=False), "later": RoleConfig()}, leaving=True)
    assert set(wanted_roles(config, {}, KNOWN).values()) == {LEAVING}


def test_a_role_that_is_not_named_is_off():
    assert wanted_roles(AgentConfig(), {}, ("labels",)) == {"labels": DISABLED}


def test_a_misspelt_role_is_met_with_a_proposal():
    wanted = wanted_roles(AgentConfig(roles={"label": RoleConfig()}), {}, KNOWN)["label"]
    assert "labels" in wanted.reason


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_maps_of_texts_from_anything(value):
    found = string_map(value)
    assert all(isinstance(text, str) for text in found.values())
    assert not isinstance(value, dict) or set(found) <= set(value)


def test_why_a_role_that_another_process_does_is_stopped():
    config = AgentConfig(roles={"validator": RoleConfig(label="a")})
    assert why_stopped(config, {"a": "true"}, "validator") == ""
    assert why_stopped(config, {"a": "false"}, "validator") == 'the node label a is "false", not "true"'
    assert why_stopped(config, {}, "validator") == "the node label a is not set"
