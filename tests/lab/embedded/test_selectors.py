"""Selectors: the real grammar, and the real words where it is broken (read from a 1.35 API server)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.selectors import (
    LabelRequirement,
    field_match,
    fields_of,
    labels_of,
    matches,
    of_label_selector,
    parse_labels,
)
from kgpu.lab.embedded.status import ApiError

KINDS = Kinds()
PODS = KINDS.need("", "pods")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a===b", "unable to parse requirement: found '=', expected: identifier"),
        ("x in ", "unable to parse requirement: found '' expected: '('"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a>b", "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer"),
        ("a,", "found '', expected: identifier after ','"),
    ],
)  # fmt: skip
def test_broken_label_selectors_are_refused_in_the_real_words(text: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_labels(text)
    assert (caught.value.code, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("text", "labels", "wanted"),
    [
        ("a=b", {"a": "b"}, True), ("a==b", {"a": "c"}, False), ("a!=b", {}, True), ("a!=b", {"a": "b"}, False),
        ("a in (b,c)", {"a": "c"}, True), ("a in (b, c)", {}, False), ("a notin (b)", {}, True), ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False), ("!a", {}, True), ("a>1", {"a": "2"}, True), ("a<1", {"a": "x"}, False),
        ("a=", {"a": ""}, True), ("in in (notin)", {"in": "notin"}, True), ("a in (,b)", {"a": ""}, True),
        ("x.io/a=b,c!=d", {"x.io/a": "b", "c": "e"}, True), (" a = b , !c ", {"a": "b"}, True),
    ],
)  # fmt: skip
def test_label_selectors_match(text: str, labels: dict[str, str], wanted: bool) -> None:
    match = labels_of(text)
    assert match is not None
    assert match({"metadata": {"labels": labels}}) is wanted


NAMES = st.from_regex(r"[a-z]([a-z0-9]{0,5})", fullmatch=True).filter(lambda name: name not in ("in", "notin"))


@given(st.lists(st.tuples(NAMES, st.sampled_from(["=", "!=", "in", "notin", "exists", "!"]), st.sets(NAMES, min_size=1, max_size=3)), max_size=4))  # fmt: skip
def test_what_is_printed_is_parsed_again(rows: list[tuple[str, str, set[str]]]) -> None:
    wanted, texts = [], []
    for key, operator, values in rows:
        held = tuple(sorted(values)) if operator in ("in", "notin") else (min(values),)
        if operator in ("exists", "!"):
            held = ()
        wanted.append(LabelRequirement(key, operator, held))
        forms = {"exists": key, "!": f"!{key}", "in": f"{key} in ({','.join(held)})", "notin": f"{key} notin ({','.join(held)})"}  # fmt: skip
        texts.append(forms.get(operator) or f"{key}{operator}{held[0]}")
    assert sorted(parse_labels(",".join(texts)), key=repr) == sorted(wanted, key=repr)


@given(st.text(alphabet="ab=!(),<> in\0", max_size=12))
def test_any_text_is_parsed_or_refused_with_400(text: str) -> None:
    codes = [200]
    try:
        parse_labels(text)
    except ApiError as error:
        codes.append(error.code)
    assert codes in ([200], [200, 400])


def test_label_selectors_of_objects() -> None:
    selector = of_label_selector({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]})
    assert selector is not None
    assert matches(selector, {"a": "b", "c": ""})
    assert not matches(selector, {"a": "b"})
    assert of_label_selector(None) is None


@pytest.mark.parametrize(
    ("plural", "text", "message"),
    [
        ("pods", "spec.foo=a", "field label not supported: spec.foo"),
        ("pods", "spec", "invalid selector: 'spec'; can't understand 'spec'"),
        ("pods", r"metadata.name=a\b", "invalid field selector: invalid escape sequence: \\b"),
        ("configmaps", "data.x=1", '"data.x" is not a known field selector: only "metadata.name", "metadata.namespace"'),
    ],
)  # fmt: skip
def test_broken_field_selectors_are_refused_in_the_real_words(plural: str, text: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        fields_of(KINDS.need("", plural), text)
    assert (caught.value.code, caught.value.message) == (400, message)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("spec.nodeName=n", True), ("spec.nodeName!=n", False), ("status.phase=Running,spec.nodeName=n", True),
        ("spec.hostNetwork=false", True), ("status.podIP=10.0.0.1", True), ("metadata.name=p", True), ("spec.host==n", True),
    ],
)  # fmt: skip
def test_field_selectors_match(text: str, wanted: bool) -> None:
    pod = {
        "metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
    }  # fmt: skip
    match = field_match(PODS, fields_of(PODS, text))
    assert match is not None
    assert match(pod) is wanted


def test_events_of_either_group_are_selected_by_what_is_stored() -> None:
    event = {"metadata": {}, "involvedObject": {"name": "p"}, "reportingComponent": "x"}
    for group, text in (("", "involvedObject.name=p,source=x"), ("events.k8s.io", "regarding.name=p")):
        events = KINDS.need(group, "events")
        match = field_match(events, fields_of(events, text))
        assert match is not None
        assert match(event)
