"""Which roles run, from every document and every set of labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.agent.role_decisions import DISABLED, LEAVING, labels_that_count, string_map, wanted_roles, why_stopped
from kgpu.formats.agent_config import AgentConfig, RoleConfig

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
