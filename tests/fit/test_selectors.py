"""Selectors and taints match as the API server's libraries do, parse errors included."""

from __future__ import annotations

import pytest

from kgpu.fit.model import HostPort
from kgpu.fit.read import label_selector, node_terms
from kgpu.fit.selectors import PodToleration, Taint

LABELS = {"a": "1", "memory": "81559", "word": "x"}


def term(key: str, operator: str, *values: str) -> bool:
    terms = node_terms(
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}]}
    )
    assert terms is not None
    return any(one.matches(LABELS, "n") for one in terms)


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("a", "In", ["1", "2"], True),
        ("b", "In", ["1"], False),
        ("a", "NotIn", ["1"], False),
        ("b", "NotIn", ["1"], True),
        ("a", "Exists", [], True),
        ("b", "DoesNotExist", [], True),
        ("memory", "Gt", ["79000"], True),
        ("memory", "Gt", ["81559"], False),
        ("memory", "Lt", ["90000"], True),
        ("b", "Lt", ["90000"], False),
        ("word", "Gt", ["0"], False),
        # What can't be parsed matches nothing.
        ("memory", "Gt", ["0", "1"], False),
        ("memory", "Gt", ["-5"], False),
        ("a", "Exists", ["1"], False),
        ("a", "In", [], False),
        ("a", "Near", ["1"], False),
        ("b", "NotIn", ["no label value!"], False),
    ],
)
def test_node_terms(key, operator, values, matches):
    assert term(key, operator, *values) is matches


@pytest.mark.parametrize(
    "expression",
    [
        {"key": "a", "operator": None, "values": ["1"]},
        {"key": "a", "values": ["1"]},
        {"key": "a", "operator": 7},
        {"key": "memory", "operator": "Gt", "values": [1]},
        {"key": "memory", "operator": "Lt"},
    ],
)
def test_an_operator_that_is_no_text_or_has_no_value_matches_nothing(expression):
    """The API refuses it; in a volume's affinity, which the scheduler explains term by term, it must break nothing."""
    (term,) = node_terms({"nodeSelectorTerms": [{"matchExpressions": [expression]}]})
    assert not term.matches(LABELS, "n")
    assert term.first_miss(LABELS, "n") == term.expressions[0]
    assert label_selector({"matchExpressions": [expression]}).error


def test_an_absent_selector_selects_nothing_and_an_empty_one_everything():
    assert not label_selector(None).matches(LABELS)
    assert label_selector({}).matches(LABELS)
    assert label_selector({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["0"]}]}).error


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (PodToleration(operator="Exists"), True),
        (PodToleration("k", "Exists"), True),
        (PodToleration("k", "", "v"), True),
        (PodToleration("k", "Equal", "other"), False),
        (PodToleration("k", "Exists", "", "NoExecute"), False),
        (PodToleration("k", "Gt", "0"), False),
        (PodToleration("other", "Exists"), False),
    ],
)
def test_tolerations(toleration, tolerates):
    assert toleration.tolerates(Taint("k", "v", "NoSchedule")) is tolerates


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (HostPort(80), HostPort(80), True),
        (HostPort(80), HostPort(81), False),
        (HostPort(80), HostPort(80, "UDP"), False),
        (HostPort(80, address="127.0.0.1"), HostPort(80), True),
        (HostPort(80, address="127.0.0.1"), HostPort(80, address="10.0.0.1"), False),
    ],
)
def test_host_ports(one, other, clash):
    assert one.clashes(other) is clash
    assert other.clashes(one) is clash
