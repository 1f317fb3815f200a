"""Custom resources from anywhere are read or refused with their paths, and nothing that they hold makes it raise."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import yaml
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.decode import MOST, Decoded, clusterpolicy, nvidiadriver
from kgpu.formats.crd.definitions import DEFINITIONS
from kgpu.formats.crd.fields import Type, rows
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from tests.formats.crd import samples

Raw = dict[str, Any]
READERS: dict[str, Callable[[Any], Decoded[Any]]] = {"ClusterPolicy": clusterpolicy, "NVIDIADriver": nvidiadriver}
BLOCKS = {"ClusterPolicy": "CLUSTERPOLICY", "NVIDIADriver": "NVIDIADRIVER"}


def policy(**spec: Any) -> Decoded[ClusterPolicySpec]:
    return clusterpolicy({"metadata": {"name": "cluster-policy"}, "spec": spec})


def test_the_documents_sample_is_read_with_a_warning_for_what_has_no_effect() -> None:
    found = clusterpolicy(yaml.load(samples.PRINTED))
    assert found.problem is None
    assert found.spec.driver.version == "550.127.08"
    assert found.spec.device_plugin.config.name == "device-plugin-config"
    assert found.spec.mig is not None
    assert found.spec.mig.strategy == "single"
    assert found.spec.daemonsets.update_strategy == "RollingUpdate"
    assert [text.partition(" ")[0] for text in found.warnings] == [
        "spec.operator.defaultRuntime",
        "spec.nodeFeatureDiscovery",
    ]
    assert "nfd.enabled" in found.warnings[1]


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_field_of_the_table_arrives(kind: str) -> None:
    spec = samples.full(BLOCKS[kind])
    found = READERS[kind]({"metadata": {"name": "x"}, "spec": spec})
    assert found.problem is None
    assert not [text for text in found.warnings if "not a field" in text]
    assert json.loads(msgspec.json.encode(found.spec)) == pruned(spec)


def pruned(spec: Raw) -> Raw:
    """Without what is left out when it has its default value."""
    spec = copy.deepcopy(spec)
    if "cdi" in spec:
        del spec["cdi"]["enabled"]
        return spec
    del spec["upgradePolicy"]["autoUpgrade"]
    return spec


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("obj", [{}, {"spec": None}, {"spec": {}}, {"metadata": None, "spec": {}}])
def test_nothing_said_is_the_defaults(kind: str, obj: Raw) -> None:
    struct = {"ClusterPolicy": ClusterPolicySpec, "NVIDIADriver": NVIDIADriverSpec}[kind]
    assert READERS[kind](obj) == Decoded(spec=struct())


def test_nulls_count_as_absent() -> None:
    assert policy(driver=None, mig={"strategy": None}, operator={"labels": None}).spec == policy(mig={}).spec


@pytest.mark.parametrize(
    ("spec", "path", "is_", "expected"),
    [
        ({"driver": {"version": 550}}, "spec.driver.version", "is 550", "a text"),
        ({"driver": []}, "spec.driver", "is a list", "a mapping"),
        ({"driver": {"enabled": "true"}}, "spec.driver.enabled", 'is "true"', "true or false"),
        ({"driver": {"enabled": 1}}, "spec.driver.enabled", "is 1", "true or false"),
        ({"driver": {"env": {}}}, "spec.driver.env", "is a mapping", "a list"),
        ({"driver": {"env": [{"value": "x"}]}}, "spec.driver.env[0].name", "is missing", "The variable's name"),
        ({"driver": {"env": [None]}}, "spec.driver.env[0]", "is null", "a mapping"),
        ({"driver": {"args": [None]}}, "spec.driver.args[0]", "is null", "a text"),
        ({"mig": {"strategy": "mixt"}}, "spec.mig.strategy", 'is "mixt"', 'mixed or none or single; did you mean "mixed"?'),
        ({"driver": {"startupProbe": {"periodSeconds": 0}}}, "periodSeconds", "is 0", "a number from 1 to 2147483647"),
        ({"dcgm": {"hostPort": 2**31}}, "spec.dcgm.hostPort", "is 2147483648", "to 2147483647"),
        ({"dcgm": {"hostPort": 1.5}}, "spec.dcgm.hostPort", "is 1.5", "a whole number"),
        ({"dcgm": {"hostPort": float("nan")}}, "spec.dcgm.hostPort", "is nan", "a whole number"),
        ({"operator": {"labels": {"a": 1}}}, 'spec.operator.labels["a"]', "is 1", "a text"),
        ({"operator": {"labels": {1: "a"}}}, "spec.operator.labels", "is a mapping", "texts as keys"),
        ({"driver": {"upgradePolicy": {"maxUnavailable": True}}}, "maxUnavailable", "is true", "a whole number or a text"),
        ({"gfd": {"resources": {"limits": {"cpu": "much"}}}}, 'limits["cpu"]', 'is "much"', "a text that matches"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_it_should_be(spec: Raw, path: str, is_: str, expected: str) -> None:
    found = policy(**spec)
    assert found.spec == ClusterPolicySpec()
    assert found.problem is not None
    assert f"{path} {is_}" in found.problem.what
    assert expected in found.problem.why
    assert "ClusterPolicy cluster-policy" in found.problem.what
    assert "kubectl edit clusterpolicy cluster-policy" in found.problem.remedy


def test_several_wrong_values_are_counted() -> None:
    found = policy(driver={"version": 1, "image": 2}, gfd=3)
    assert found.problem is not None
    assert "spec.driver.version is 1, and 2 more such" in found.problem.what


def test_a_whole_float_is_a_number() -> None:
    assert policy(dcgm={"hostPort": 5555.0}).spec.dcgm.host_port == 5555


def test_an_unknown_field_is_a_warning_with_what_was_meant() -> None:
    found = policy(devicePlugin={"konfig": {}}, nothing_like_it_at_all=1)
    assert found.problem is None
    assert found.warnings == (
        'spec.devicePlugin.konfig is not a field of this kind and has no effect; did you mean "config"?',
        "spec.nothing_like_it_at_all is not a field of this kind and has no effect",
    )


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        ({"psp": {"enabled": False}}, False),
        ({"psp": {"enabled": True}}, True),
        ({"kataManager": {"enabled": False, "config": {"artifactsDir": "/x"}}}, False),
        ({"operator": {"defaultRuntime": ""}}, False),
        ({"operator": {"initContainer": {}}}, False),
        ({"operator": {"initContainer": {"image": "x"}}}, True),
        ({"driver": {"licensingConfig": {"configMapName": "x"}}}, True),
        ({"cdi": {"default": False}}, False),
        ({"cdi": {"default": True}}, True),
    ],
)
def test_a_deprecated_field_is_told_when_it_says_something(spec: Raw, warned: bool) -> None:
    assert bool(policy(**spec).warnings) == warned


def test_what_is_deprecated_is_not_called_without_effect() -> None:
    found = policy(driver={"licensingConfig": {"configMapName": "x"}})
    assert found.warnings == ("spec.driver.licensingConfig.configMapName is deprecated: use secretName, which wins",)


def test_at_most_some_warnings_are_told_and_all_counted() -> None:
    found = policy(**{f"x{number}": 1 for number in range(1000)})
    assert len(found.warnings) == MOST + 1
    assert found.warnings[-1] == f"{1000 - MOST} more fields without effect"


def deep(levels: int, *, lists: bool = False) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found] if lists else {"driver": found}
    return found


HOSTILE = {
    "deep mapping": deep(100_000),
    "deep list": deep(100_000, lists=True),
    "spec deep in place": {"driver": deep(100_000)},
    "deep in a list": {"driver": {"env": deep(100_000, lists=True)}},
    "deep in a mapping": {"operator": {"labels": deep(100_000)}},
    "long key": {"x" * 1_000_000: 1},
    "long value": {"driver": {"kernelModuleType": "x" * 1_000_000}},
    "long number": {"dcgm": {"hostPort": 10**10_000}},
    "no text": {"driver": {"version": b"x"}, 5: 6, None: 7, ("a",): 8},
    "surrogate": {"\ud800": 1, "mig": {"strategy": "\ud800\x1b[31m\n"}},
    "many": {"driver": {"args": [1] * 200_000}},
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE)
def test_hostile_input_is_answered_in_few_plain_words(spec: Any) -> None:
    for read in READERS.values():
        found = read({"metadata": {"name": "x" * 10_000 + "\n"}, "spec": spec})
        for text in (*found.warnings, found.problem.sentence if found.problem else ""):
            assert len(text) < 800
            assert text.isprintable()
            assert text.isascii()


def names() -> list[str]:
    found = {"metadata", "name", "spec"}

    def add(kind: Type) -> None:
        for row in rows(kind.struct) if kind.struct else ():
            found.add(row.name)
            add(row.type)
        for below in (kind.items, kind.values):
            if below:
                add(below)

    for definition in DEFINITIONS:
        add(Type(struct=definition.spec))
    return sorted(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(names()) | st.text(max_size=9), inner, max_size=6)
    ),
    max_leaves=30,
)


@given(JSON, st.sampled_from(sorted(READERS)))
def test_anything_is_read_or_refused(value: Any, kind: str) -> None:
    for obj in (value, {"spec": value}):
        found = READERS[kind](obj)
        struct = type(found.spec)
        assert msgspec.convert(msgspec.to_builtins(found.spec), struct) == found.spec
        if found.problem is not None:
            assert found.spec == struct()
            assert found.problem.why.startswith("expected ")
            assert found.problem.remedy


@given(st.data())
def test_one_wrong_value_in_a_full_spec_is_found_at_its_place(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(BLOCKS)))
    spec = samples.full(BLOCKS[kind])
    path = "spec"
    here: Any = spec
    while True:
        key = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        marks = {list: f"[{key}]", dict: '["key"]' if key == "key" and len(here) == 1 else f".{key}"}
        path += marks[type(here)]
        if not isinstance(here[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
            here[key] = complex(1, 1)
            break
        here = here[key]
    found = READERS[kind]({"spec": spec})
    assert found.problem is not None
    assert f"{path} is of no JSON type" in found.problem.what
