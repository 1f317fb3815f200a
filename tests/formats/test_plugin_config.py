"""The config file v1: what it means, and what is wrong with it."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.plugin_config import (
    MPS_CLIENTS,
    DeviceSelection,
    NamePattern,
    PluginConfig,
    SharedResource,
    Sharing,
    SharingKind,
    full_resource_name,
    resource_name_problem,
)
from kgpu.formats.plugin_config_parse import KNOWN, examine, parse_config
from kgpu.formats.yaml import dump

GPU = "nvidia.com/gpu"
UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"


def sharing(*resources: dict[str, Any], kind: str = "timeSlicing", **block: Any) -> str:
    return json.dumps({"version": "v1", "sharing": {kind: {**block, "resources": list(resources)}}})


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing\n", "{}", "null", "version: v1", "version:", "version: ''", "flags:\nsharing:\n"]
)
def test_nothing_given_is_nothing_set(text: str) -> None:
    assert parse_config(text) == PluginConfig()


def test_the_usual_time_slicing_file() -> None:
    text = """
    version: v1
    flags:
      migStrategy: none
    sharing:
      timeSlicing:
        renameByDefault: false
        failRequestsGreaterThanOne: true
        resources:
        - name: nvidia.com/gpu
          replicas: 10
    """
    config = parse_config(text)
    assert config.flags == {"flags.migStrategy": "none"}
    assert config.sharing == Sharing(
        kind=SharingKind.TIME_SLICING,
        fail_requests_greater_than_one=True,
        resources=(SharedResource(name=GPU, replicas=10),),
    )


def test_struct_keys_match_in_any_capitals_and_nulls_are_unset() -> None:
    text = "VERSION: v1\nFlags: {MigStrategy: single, failoniniterror: null, PLUGIN: {deviceIdStrategy: index}}\n"
    assert parse_config(text).flags == {"flags.migStrategy": "single", "flags.plugin.deviceIDStrategy": "index"}


@pytest.mark.parametrize(
    ("value", "strategies"),
    [
        ("envvar", ("envvar",)),
        (["cdi-cri", "envvar"], ("cdi-cri", "envvar")),
        ("cdi-cri,envvar", ("cdi-cri", "envvar")),
    ],
)
def test_a_strategy_or_a_list_of_them(value: Any, strategies: tuple[str, ...]) -> None:
    config = parse_config(json.dumps({"flags": {"plugin": {"deviceListStrategy": value}}}))
    assert config.flags["flags.plugin.deviceListStrategy"] == strategies


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [(0, 0), ("0s", 0), (5, 5), ("5s", 5 * 10**9), ("1m0s", 60 * 10**9), ("infinite", 2**63 - 1), (2.0, 2)],
)
def test_sleep_intervals(value: Any, nanoseconds: int) -> None:
    config = parse_config(json.dumps({"flags": {"gfd": {"sleepInterval": value}}}))
    assert config.flags == {"flags.gfd.sleepInterval": nanoseconds}


@pytest.mark.parametrize(
    ("devices", "selection"),
    [
        (None, DeviceSelection()),
        ("all", DeviceSelection()),
        (2, DeviceSelection(count=2)),
        (2.0, DeviceSelection(count=2)),
        ([0, "1", "2:3"], DeviceSelection(refs=("0", "1", "2:3"))),
        ([f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/3/0"],
         DeviceSelection(refs=(f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/3/0"))),
    ],
)  # fmt: skip
def test_device_selections(devices: Any, selection: DeviceSelection) -> None:
    config = parse_config(sharing({"name": "gpu", "replicas": 2, "devices": devices}))
    assert config.sharing is not None
    assert config.sharing.resources == (SharedResource(name=GPU, replicas=2, devices=selection),)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("some", "devices set as 'some' but the only valid string input is 'all'"),
        ("", "devices set as '' but the only valid string input is 'all'"),
        (0, "devices set as '0' but a count of devices must be > 0"),
        (-1, "devices set as '-1' but a count of devices must be > 0"),
        ([-1], "unsupported type for device in devices list: -1, int"),
        ([1.5], "unsupported type for device in devices list: 1.5, float"),
        ([True], "unsupported type for device in devices list: true, bool"),
        (["GPU-123"], "unsupported type for device in devices list"),
        (["GPU-" + UUID + "0"], "unsupported type for device in devices list"),
        (["0:1:2"], "unsupported type for device in devices list"),
        ([[0]], "unsupported type for device in devices list"),
        ([], "the list of devices is empty"),
        ([0, "0"], "device 0 is there twice"),
        ({"a": 1}, 'unrecognized type for devices spec: {"a": 1}'),
        (True, "unrecognized type for devices spec: true"),
        (1.5, "unrecognized type for devices spec: 1.5"),
    ],
)
def test_bad_device_selections(devices: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(sharing({"name": "gpu", "replicas": 2, "devices": devices}))
    assert words in refused.value.what
    assert "sharing.timeSlicing.resources[0].devices" in refused.value.what


def test_names_that_shares_are_offered_under() -> None:
    block = parse_config(
        sharing(
            {"name": "gpu", "replicas": 2},
            {"name": "mig-1g.5gb", "replicas": 3, "rename": "small"},
            renameByDefault=True,
        )
    ).sharing
    assert block is not None
    assert [block.offered_name(entry) for entry in block.resources] == ["nvidia.com/gpu.shared", "nvidia.com/small"]


@pytest.mark.parametrize(
    ("kind", "given", "refuses"),
    [
        ("timeSlicing", None, False),
        ("timeSlicing", True, True),
        ("mps", None, True),
        ("mps", False, False),
        ("mps", True, True),
    ],
)
def test_mps_refuses_requests_for_many_unless_told(kind: str, given: bool | None, refuses: bool) -> None:
    text = sharing({"name": "gpu", "replicas": 2}, kind=kind, failRequestsGreaterThanOne=given)
    block = parse_config(text).sharing
    assert block is not None
    assert (block.kind.value, block.refuses_many) == (kind, refuses)


def test_patterns() -> None:
    text = "resources: {gpus: [{pattern: '*A100*', name: a100}], mig: [{pattern: 1g.5gb, name: nvidia.com/small}]}"
    config = parse_config(text)
    assert config.gpus == (NamePattern(pattern="*A100*", name="nvidia.com/a100"),)
    assert config.mig == (NamePattern(pattern="1g.5gb", name="nvidia.com/small"),)


def test_different_lists_of_one_resource_are_no_contradiction() -> None:
    config = parse_config(
        sharing({"name": "gpu", "replicas": 4, "devices": [0]}, {"name": GPU, "replicas": 2, "devices": [1]})
    )
    assert config.sharing is not None
    assert [entry.replicas for entry in config.sharing.resources] == [4, 2]


ENTRY = {"name": "gpu", "replicas": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: v2", ["version", "unknown version: v2"]),
        ("version: 1", ["unknown version: 1"]),
        ("[]", ["is not a mapping"]),
        ("flags: 3", ["flags: 3 is not a mapping"]),
        ("flags: {migStrategy: dual}", ["flags.migStrategy: unknown MIG strategy: dual"]),
        ("flags: {migStrategy: 1}", ["flags.migStrategy", "is not a text"]),
        ("flags: {failOnInitError: 'true'}", ["flags.failOnInitError", "is not a boolean"]),
        ("flags: {plugin: {deviceListStrategy: 3}}", ["invalid deviceListStrategy: 3"]),
        ("flags: {plugin: {deviceListStrategy: []}}", ["invalid deviceListStrategy: []"]),
        (
            "flags: {plugin: {deviceListStrategy: foo}}",
            ["invalid --device-list-strategy option: invalid strategy: foo"],
        ),
        ("flags: {plugin: {deviceIDStrategy: foo}}", ["invalid --device-id-strategy option: foo"]),
        ("flags: {gfd: {sleepInterval: 5x}}", ["flags.gfd.sleepInterval", "invalid duration"]),
        ("flags: {gfd: {sleepInterval: [1]}}", ["invalid duration"]),
        ("flags: {migStrategy: none, MIGSTRATEGY: single}", ['"MIGSTRATEGY" and "migStrategy" are the same key']),
        ("imex: {channelIDs: [1]}", ["imex.channelIDs", "channelIDs must be [] or [0]; found [1]"]),
        ("imex: {channelIDs: [0, 0]}", ["found [0 0]"]),
        ("imex: {channelIDs: zero}", ["imex.channelIDs"]),
        ("resources: {gpus: [{name: gpu}]}", ["resources must have a 'pattern' field set"]),
        ("resources: {gpus: [{pattern: '*'}]}", ["resources must have a 'name' field set"]),
        ("resources: {gpus: [{pattern: a, name: a}, {pattern: a, name: b}]}", ["gpus[1].pattern", "there twice"]),
        ("resources: {gpus: {pattern: a}}", ["is not a list"]),
        ("sharing: {mps: {}}", ["sharing.mps: no resources specified"]),
        ("sharing: {timeSlicing: {}}", ["sharing.timeSlicing: no resources specified"]),
        ("sharing: {timeSlicing: {resources: []}}", ["no resources specified"]),
        (sharing({"replicas": 2}), ["resources[0]: no resource name specified"]),
        (sharing({"name": "", "replicas": 2}), ["no resource name specified"]),
        (sharing({"name": "gpu"}), ["resources[0]: no replicas specified"]),
        (sharing({"name": "gpu", "replicas": 1}), ["resources[0].replicas", "number of replicas must be >= 2"]),
        (sharing({"name": "gpu", "replicas": -3}), ["number of replicas must be >= 2"]),
        (sharing({"name": "gpu", "replicas": "4"}), ["is not a whole number"]),
        (sharing({"name": "gpu", "replicas": 2.5}), ["is not a whole number"]),
        (sharing({"name": "gpu", "replicas": True}), ["is not a whole number"]),
        (sharing({"name": "gpu", "replicas": 10**9}), ["are too many"]),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}",
            ["sharing.mps.resources[0].replicas", "device maximum allowed replicas exceeded: 49 > 48"],
        ),
        (
            sharing({"name": "nvidia.com/gpu/x", "replicas": 2}),
            ["incorrect format for resource name 'nvidia.com/gpu/x'"],
        ),
        (sharing({"name": "GPU", "replicas": 2}), ["incorrect format for resource name 'nvidia.com/GPU'"]),
        (sharing({"name": "nvidia.com/", "replicas": 2}), ["incorrect format"]),
        (sharing({"name": "/gpu", "replicas": 2}), ["incorrect format"]),
        (sharing({"name": "kubernetes.io/gpu", "replicas": 2}), ["reserved"]),
        (
            sharing({"name": "x" * 60, "replicas": 2}),
            ["fully-qualified resource name must be 63 characters or less: 71"],
        ),
        (sharing({"name": "x" * 50, "replicas": 2}, renameByDefault=True), ["63 characters or less: 68"]),
        (sharing({**ENTRY, "rename": "Not Valid"}), ["resources[0].rename", "incorrect format"]),
        (sharing(ENTRY, {"name": GPU, "replicas": 3}), ["resources[1].name: nvidia.com/gpu is shared twice"]),
        (sharing({**ENTRY, "devices": [0]}, {**ENTRY, "devices": [0, 1]}), ["is shared twice"]),
        (sharing({**ENTRY, "devices": [0]}, {**ENTRY, "devices": 1}), ["is shared twice"]),
        (
            sharing({**ENTRY, "rename": "x"}, {"name": "mig-1g.5gb", "replicas": 2, "rename": "x"}),
            ["would both be offered as nvidia.com/x"],
        ),
        (sharing(ENTRY)[:-1] + ', "sharing": {}}', ['key "sharing" is there twice']),
        ("a: b: c", ["error parsing config file"]),
        (
            json.dumps({"sharing": {kind: {"resources": [ENTRY]} for kind in ("timeSlicing", "mps")}}),
            ["timeSlicing and mps are both given"],
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, source="FILE")
    for word in ["unable to parse config file", "FILE", *words]:
        assert word in refused.value.what
    assert refused.value.expected
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("flags: {renameByDefault: true}", "flags.renameByDefault",
         "move it: it belongs in sharing.timeSlicing or sharing.mps"),
        ("flags: {passDeviceSpecs: true}", "flags.passDeviceSpecs", "move it: it belongs in flags.plugin"),
        ("migStrategy: none", "migStrategy", "move it: it belongs in flags"),
        ("flags: {migStrateg: none}", "flags.migStrateg", 'did you mean "migStrategy"?'),
        ("sharingg: {}", "sharingg", 'did you mean "sharing"?'),
        ("sharing: {timeSlicng: {}}", "sharing.timeSlicng", 'did you mean "timeSlicing"?'),
        (sharing({**ENTRY, "Replicas": 3}), "resources[0].Replicas", 'did you mean "replicas"?'),
        (sharing(ENTRY, replicas=3), "sharing.timeSlicing.replicas",
         "move it: it belongs in sharing.timeSlicing.resources or sharing.mps.resources"),
        ("qwertz: 1", "qwertz", "remove it"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, 5: x}]}}", "resources[0].5", "remove it"),
    ],
)  # fmt: skip
def test_unknown_keys_say_what_was_meant(text: str, key: str, remedy: str) -> None:
    (problem, *_) = examine(text)[1]
    assert f'{key}: unknown key "{key.rpartition(".")[2]}"' in problem.what
    assert problem.remedy == remedy


def test_every_problem_is_found_with_its_line() -> None:
    text = (
        "version: v3\nflags:\n  migStrategy: x\n  foo: 1\nsharing:\n  timeSlicing:\n    resources:\n    - name: gpu\n"
    )
    problems = examine(text, source="FILE")[1]
    assert [problem.what.split(": ")[1] for problem in problems] == [
        "FILE, line 1", "FILE, line 3", "FILE, line 4", "FILE, line 8",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="FILE")
    assert caught.value.what.count("unable to parse config file") == 1
    assert [f"line {line}: " in caught.value.what for line in (1, 3, 4, 8)] == [True] * 4
    many = "flags: {" + ", ".join(f"unknown{number}: 1" for number in range(9)) + "}"
    with pytest.raises(ConfigError, match=r"unknown4.*; and 4 more problems"):
        parse_config(many)


def test_no_phrase_stands_twice_where_the_syntax_is_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("a: b: c", source="ConfigMap gpu/configs, key a")
    assert caught.value.what.startswith(
        "unable to parse config file: error parsing config file: ConfigMap gpu/configs, key a, line 1"
    )
    assert caught.value.what.count("error parsing") == 1


@pytest.mark.parametrize(
    ("name", "full", "good"),
    [
        ("gpu", GPU, True), ("nvidia.com/gpu", GPU, True), ("example.com/gpu", "example.com/gpu", True),
        ("mig-1g.5gb.me", "nvidia.com/mig-1g.5gb.me", True), ("a_b", "nvidia.com/a_b", False),
        ("-a", "nvidia.com/-a", False), ("a..b", "nvidia.com/a..b", False), ("a/b/c", "a/b/c", False),
    ],
)  # fmt: skip
def test_resource_names(name: str, full: str, good: bool) -> None:
    assert full_resource_name(name) == full
    assert (resource_name_problem(full) == "") is good


def keys(table: Any) -> list[str]:
    found: list[str] = []
    for key, below in table.items():
        found.append(key)
        if isinstance(below, dict):
            found += keys(below)
    return found


KEYS = sorted(set(keys(KNOWN)))
VALUES = (
    st.none() | st.booleans() | st.integers(-3, 100) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["all", "v1", "gpu", GPU, "envvar", "5s", "infinite", "none", "mixed", "0:1", ""]) | st.text(max_size=8)
)  # fmt: skip
TREES = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(TREES)
def test_any_tree_is_a_config_or_three_part_errors(tree: Any) -> None:
    config, problems = examine(dump(tree))
    for problem in problems:
        assert problem.what
        assert problem.expected
        assert problem.remedy
    if not problems:
        assert parse_config(dump(tree)) == config


@given(st.text(max_size=300))
def test_any_text_is_a_config_or_three_part_errors(text: str) -> None:
    _, problems = examine(text)
    assert all(problem.expected and problem.remedy for problem in problems)


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


@given(
    entries=st.dictionaries(
        NAMES, st.tuples(st.integers(2, MPS_CLIENTS), st.none() | st.integers(1, 8)), min_size=1, max_size=4
    ),
    kind=st.sampled_from(list(SharingKind)),
    rename=st.booleans(),
    fail=st.none() | st.booleans(),
)
def test_what_is_valid_round_trips(entries, kind, rename, fail) -> None:
    block = {
        "renameByDefault": rename,
        "failRequestsGreaterThanOne": fail,
        "resources": [
            {"name": name, "replicas": replicas, "devices": count} for name, (replicas, count) in entries.items()
        ],
    }
    tree = {"version": "v1", "sharing": {kind.value: block}}
    config = parse_config(dump(tree))
    assert config.sharing == Sharing(
        kind=kind,
        rename_by_default=rename,
        fail_requests_greater_than_one=fail,
        resources=tuple(
            SharedResource(name=f"nvidia.com/{name}", replicas=replicas, devices=DeviceSelection(count=count))
            for name, (replicas, count) in entries.items()
        ),
    )
    assert parse_config(json.dumps(tree)) == config


@given(pattern=st.text("ab*", max_size=8), text=st.text("ab", max_size=8))
def test_patterns_match_as_wildcards_do(pattern: str, text: str) -> None:
    expected = fnmatch.fnmatchcase(text, pattern)
    assert NamePattern(pattern=pattern, name="nvidia.com/gpu").matches(text) == expected


def test_a_pattern_of_many_stars_ends() -> None:
    assert not NamePattern(pattern="*" * 200 + "x", name="nvidia.com/gpu").matches("NVIDIA H100 80GB HBM3" * 4)
