"""Selectors: what each gives for one device, and that kube-scheduler's CEL says the same."""

from __future__ import annotations

from typing import Final

import pytest

from kgpu.fit.devices.cel import CelSelectors, with_default_domains
from kgpu.fit.devices.read import device_slice
from kgpu.fit.devices.selector import SelectorFault
from tests.fit.devices import oracle, table
from tests.fit.devices.generate import Json

GPU: Final = 'device.attributes["gpu.example.com"]'
MEMORY: Final = 'device.capacity["gpu.example.com"].memory'
DEVICE: Final[Json] = {
    "name": "a",
    "attributes": {
        "model": {"string": "H100"},
        "index": {"int": 3},
        "fast": {"bool": True},
        "driver": {"version": "550.54.15"},
        "other.example.com/index": {"int": 7},
    },
    "capacity": {"memory": {"value": "80Gi"}, "other.example.com/ports": {"value": "4"}},
    "allowMultipleAllocations": True,
}
COMPILE: Final = "compile"
RUNTIME: Final = "runtime"
ROWS: Final[tuple[tuple[str, bool | str], ...]] = (
    ('device.driver == "gpu.example.com"', True),
    (f'{GPU}.model == "H100"', True),
    (f'{GPU}.model.startsWith("A")', False),
    (f'{GPU}["model"] == "H100"', True),
    (f"{GPU}.index >= 3 && {GPU}.index < 4", True),
    (f"{GPU}.index == 3.0", True),
    (f"{GPU}.fast", True),
    (f"!{GPU}.fast", False),
    (f"{GPU}.model", RUNTIME),
    (f"{GPU}.index > 'x'", RUNTIME),
    (f'{GPU}.index == "3"', False),
    (f"{GPU}.nothing == 1", RUNTIME),
    (f"has({GPU}.nothing)", False),
    (f"has({GPU}.model)", True),
    (f"!has({GPU}.nothing) || {GPU}.nothing == 1", True),
    (f"{GPU}.nothing == 1 || true", True),
    (f"{GPU}.?nothing.orValue(5) == 5", True),
    (f'"model" in {GPU}', True),
    (f'"nothing" in {GPU}', False),
    ('device.attributes["other.example.com"].index == 7', True),
    ('device.attributes["nowhere.example.com"].index == 7', RUNTIME),
    ('has(device.attributes["nowhere.example.com"].index)', False),
    ('device.attributes["nowhere.example.com"].size() == 0', True),
    ('"nowhere.example.com" in device.attributes', False),
    ('"other.example.com" in device.attributes', True),
    ("device.attributes.size() == 2", True),
    ('device.attributes.exists(domain, domain == "other.example.com")', True),
    ('device.attributes["gpu.example.com" + ""].index == 3', True),
    ("device.attributes['gpu.example.com'].index == 3", True),
    ('device.attributes[?"nowhere.example.com"].hasValue()', True),
    ('cel.bind(own, device.attributes["gpu.example.com"], own.fast && own.index == 3)', True),
    ('device.attributes["gpu.example.com"].model == "device.attributes[\\"x\\"]"', False),
    (f'{MEMORY}.compareTo(quantity("80Gi")) == 0', True),
    (f'{MEMORY}.isGreaterThan(quantity("40Gi"))', True),
    (f'{MEMORY}.isLessThan(quantity("40G"))', False),
    (f"{MEMORY}.asInteger() == 85899345920", True),
    (f"{MEMORY}.asApproximateFloat() > 1.0", True),
    (f"{MEMORY}.isInteger() && sign({MEMORY}) == 1", True),
    (f'{MEMORY}.add(quantity("1")).sub(1).compareTo(quantity("81920Mi")) == 0', True),
    (f'{MEMORY} == quantity("81920Mi")', True),
    (f'{MEMORY} >= quantity("1Gi")', COMPILE),
    (f'{MEMORY} >= "1Gi"', COMPILE),
    (f"{MEMORY} > 5", COMPILE),
    ('device.capacity["gpu.example.com"].nothing.isLessThan(quantity("1"))', RUNTIME),
    ('device.capacity["other.example.com"].ports.asInteger() == 4', True),
    ('sign(quantity("80GB")) == 1', RUNTIME),
    (f"{MEMORY}.sign() == 1", COMPILE),
    ('isQuantity("80GB")', False),
    (f'{GPU}.driver.isGreaterThan(semver("550.54.14"))', True),
    (f'{GPU}.driver.compareTo(semver("550.54.15")) == 0', True),
    (f'{GPU}.driver.isLessThan(semver("550.54.15-rc.1"))', False),
    (f"{GPU}.driver.major() == 550 && {GPU}.driver.minor() == 54 && {GPU}.driver.patch() == 15", True),
    (f'{GPU}.driver == semver("550.54.15")', True),
    (f'{GPU}.driver == "550.54.15"', RUNTIME),
    (f"{GPU}.fast && {GPU}.driver != '550.54.15'", True),
    (f"{GPU}.fast && {GPU}.driver == '550.54.15'", RUNTIME),
    (f'{GPU}.fast || {GPU}.driver == "550.54.15"', True),
    (f'{GPU}.model != "A100" && ({GPU}.model == "H100")', True),
    (f'{GPU}.fast == "x" || {GPU}.index != "3"', True),
    (f'{GPU}.nothing == "x"', RUNTIME),
    (f'!({GPU}.model == "H100")', False),
    (f'{GPU}.model == "H100" == true', True),
    (f'{GPU}.model == "H1" + "00"', True),
    (f'"H100" == {GPU}.model', True),
    (f'{GPU}.driver.isGreaterThan(semver("v550", true))', True),
    (f'{GPU}.driver.isGreaterThan(semver("550"))', RUNTIME),
    ('isSemver("1.2") || isSemver("01.2.3")', False),
    ('isSemver("v1.2", true)', True),
    (f'{GPU}.driver.isGreaterThan(quantity("1"))', RUNTIME),
    (f'{GPU}.model.lowerAscii() == "h100"', True),
    (f'{GPU}.model.matches("^H[0-9]+$")', True),
    (f'{GPU}.model.contains("10") && {GPU}.model.endsWith("0")', True),
    (f'{GPU}.model.replace("H", "A").split("1") == ["A", "00"]', True),
    (f'{GPU}.model.substring(1).indexOf("0") == 1', True),
    (f'{GPU}.model in ["H100", "H200"]', True),
    ('["a", "b"].exists(x, x == "b") && [1, 2].all(x, x > 0)', True),
    ('sets.contains([1, 2], [1]) && sets.intersects(["a"], ["a", "b"])', True),
    ("device.allowMultipleAllocations", True),
    ("device.nothing", COMPILE),
    ("nothing(1)", COMPILE),
    ("1 + 1", COMPILE),
    ('"x"', COMPILE),
    ("true &&", COMPILE),
    ("", COMPILE),
    ("1 / 0 == 1", RUNTIME),
    ("dyn(1) == 1", True),
    (f"{GPU}.index in [3, 4] ? true : false", True),
    (f"size({GPU}.model) == 4", True),
    ('type(device.driver) == string && int("3") == 3', True),
)


def verdict(expression: str) -> bool | str:
    piece = device_slice(case(expression)["Slices"][0])
    assert piece is not None
    found = CelSelectors().evaluate(expression, piece.device_key(piece.devices[0]), piece.devices[0])
    return found if isinstance(found, bool) else COMPILE if found.compiling else RUNTIME


def case(expression: str) -> Json:
    row = {
        "gates": ["ConsumableCapacity"],
        "slices": [{"pool": "p", "devices": [DEVICE]}],
        "claims": [{"requests": [{"name": "r", "selectors": [expression]}]}],
    }
    return table.case(row)


@pytest.mark.parametrize(("expression", "expected"), ROWS)
def test_a_selector_gives(expression: str, expected: bool | str) -> None:
    assert verdict(expression) == expected


def test_the_scheduler_gives_the_same(scheduler: oracle.Oracle) -> None:
    for expression, expected in ROWS:
        found = table.shortly(scheduler.ask(case(expression))[0])
        by_answer = {"none": False, "fault": expected if isinstance(expected, str) else "fault"}
        assert by_answer.get(found, True) == expected if isinstance(found, str) else expected is True, expression


@pytest.mark.parametrize(
    "expression",
    [f'cel.bind(own, {GPU}, own.driver == "550.54.15")', f'{GPU}.driver in ["550.54.15"]'],
)
def test_a_version_is_no_string_here_either(scheduler: oracle.Oracle, expression: str) -> None:
    """Known differences: the scheduler's CEL fails."""
    assert verdict(expression) is False
    assert scheduler.ask(case(expression)) == ["fault"]


@pytest.mark.parametrize(
    "expression",
    [
        "dyn(optional.of(true))", "dyn([optional.of(1)])", "dyn({1: optional.of(2)})", "dyn(type(1))", "dyn(device)",
        "[optional.of(1)].isSorted()", "[optional.of(1)].max() == 1", 'dyn(duration("1s"))', "dyn(null)",
    ],
)  # fmt: skip
def test_no_value_of_an_odd_type_ends_the_process(expression: str) -> None:
    """The engine crashes when it is asked for some of these."""
    assert verdict(expression) in (COMPILE, RUNTIME)


def test_a_missing_key_is_named() -> None:
    piece = device_slice(case("true")["Slices"][0])
    assert piece is not None
    found = CelSelectors().evaluate(f"{GPU}.nothing == 1", piece.device_key(piece.devices[0]), piece.devices[0])
    assert found == SelectorFault("no such key: nothing", missing="nothing")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"v": {"version": "1.2"}}, "attribute v: '1.2' is not a semantic version"),
        ({"v": {"ints": [1]}}, "attribute v: unsupported attribute value"),
    ],
)
def test_an_attribute_that_is_none_fails_every_selector(attributes: Json, words: str) -> None:
    spec = {"driver": "d", "pool": {"name": "p"}, "devices": [{"name": "a", "attributes": attributes}]}
    piece = device_slice({"metadata": {"name": "s"}, "spec": spec})
    assert piece is not None
    found = CelSelectors().evaluate("true", piece.device_key(piece.devices[0]), piece.devices[0])
    assert found == SelectorFault(words)


def test_lookups_of_domains_are_found_in_the_text() -> None:
    assert with_default_domains('device.attributes["a"].x && "device.capacity[b]" == y') == (
        'device.attributes[?"a"].orValue({}).x && "device.capacity[b]" == y'
    )
    assert with_default_domains("device . capacity [ a[0] ].x") == "device . capacity [? a[0] ].orValue({}).x"
    assert with_default_domains("my.device.attributes[0]") == "my.device.attributes[0]"
    assert with_default_domains("device.attributes.size()") == "device.attributes.size()"
    assert with_default_domains("device.attributes[") == "device.attributes[?"


def test_a_long_expression_is_refused() -> None:
    assert verdict("true" + " " * 20_000) == COMPILE
