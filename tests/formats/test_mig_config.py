"""mig-parted's config file: what it takes, what it refuses, and which GPUs an entry is about.

The accept and reject cases are the replaced program's own (``api/spec/v1/spec_test.go``, ``helpers_test.go``).
"""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_config import MigEntry, parse_mig_configs
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.formats.pci_ids import packed_text, parse_pci_filter

OK = '{"devices": "all", "mig-enabled": false}'


def of(entry: str) -> str:
    return f'{{"version": "v1", "mig-configs": {{"one": [{entry}]}}}}'


@pytest.mark.parametrize("text", ["", "{}", "version: v1", '{"version": "v1"}', "# nothing"])
def test_a_file_without_configs_is_valid(text: str) -> None:
    assert parse_mig_configs(text).configs == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{{"mig-configs": {{"one": [{OK}]}}}}', "missing 'version' field"),
        (f'{{"version": "v2", "mig-configs": {{"one": [{OK}]}}}}', "unknown version"),
        ('{"version": "v1", "mig-configs": {}}', "has no configs"),
        ('{"version": "v1", "mig-configs": []}', "has no configs"),
        ('{"version": "v1", "mig-configs": {"one": []}}', "has no entries"),
        (f'{{"version": "v1", "bogus": 1, "mig-configs": {{"one": [{OK}]}}}}', 'unknown key "bogus"'),
        (f'{{"version": "v1", "Mig-Configs": {{"one": [{OK}]}}}}', 'unknown key "Mig-Configs"'),
        (of('{"devices": "all", "mig-enabled": false, "bogus": 1}'), 'unknown key "bogus"'),
        (of('{"mig-enabled": false}'), "missing required field: devices"),
        (of('{"devices": "all"}'), "missing required field: mig-enabled"),
        (of('{"devices": "all", "mig-enabled": true}'), "missing required field: mig-devices"),
        (of('{"devices": "some", "mig-enabled": false}'), "names no GPUs"),
        (of('{"devices": {}, "mig-enabled": false}'), "names no GPUs"),
        (of('{"devices": [-1], "mig-enabled": false}'), "names no GPUs"),
        (of('{"devices": "all", "mig-enabled": "yes"}'), "is not a boolean"),
        (of('{"devices": "all", "mig-enabled": false, "mig-devices": {"1g.5gb": 1}}'), "with MIG off"),
        (of('{"devices": "all", "mig-enabled": true, "mig-devices": {"1g.5gb": 0}}'), "all counts are 0"),
        (of('{"devices": "all", "mig-enabled": true, "mig-devices": {"1g.5gb": -1}}'), "is no count"),
        (of('{"devices": "all", "mig-enabled": true, "mig-devices": {"bogus": 0, "1g.5gb": 1}}'), "is not a MIG profile"),
        (of('{"devices": "all", "mig-enabled": true, "mig-devices": ["1g.5gb"]}'), "is no mapping"),
        (of('{"devices": "all", "mig-enabled": false, "device-filter": 1}'), "is no filter"),
        (of('"all"'), "is not a mapping"),
        ("version: v1\nmig-configs: {one: [", "line 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="unable to parse") as refused:
        parse_mig_configs(text, source="the file")
    assert said in refused.value.what
    assert refused.value.expected
    assert refused.value.remedy


def test_entries_are_read_in_order_with_their_filters_and_counts() -> None:
    text = """
    version: v1
    mig-configs:
      all-disabled: [{devices: all, mig-enabled: false}]
      custom:
      - {devices: [0, 1, 1], mig-enabled: true, mig-devices: {}}
      - device-filter: ["0x20B010DE", "0x233010DE:0x16C010DE"]
        devices: all
        mig-enabled: true
        mig-devices: {1g.10gb+me: 1, 1g.10gb: 2, 3g.40gb: 0}
    """
    found = parse_mig_configs(text)
    assert found.chosen("all-disabled") == ("all-disabled", (MigEntry(enabled=False),))
    empty, cut = found.configs["custom"]
    assert (empty.devices, empty.profiles) == ((0, 1), ())
    assert cut.profiles == tuple(
        (parse_mig_profile(name), n) for name, n in (("1g.10gb+me", 1), ("1g.10gb", 2), ("3g.40gb", 0))
    )
    assert [empty.is_about(index, 0, 0) for index in (0, 1, 2)] == [True, True, False]
    assert [cut.is_about(7, *ids) for ids in ((0x20B010DE, 5), (0x233010DE, 0x16C010DE), (0x233010DE, 0x16C110DE))] == [
        True, True, False,
    ]  # fmt: skip
    assert found.warnings == ()


@pytest.mark.parametrize("text", ["A100-SXM4-40GB", "0x20B210DE:0x1:0x2", "0x20B210DE:", "0x120B210DE5", "0x"])
def test_a_filter_that_no_gpu_can_match_is_told(text: str) -> None:
    found = parse_mig_configs(of(json.dumps({"devices": "all", "device-filter": text, "mig-enabled": False})))
    assert len(found.warnings) == 1
    assert text in found.warnings[0]
    assert not found.configs["one"][0].is_about(0, 0x20B210DE, 0x1)


def test_an_empty_filter_is_every_gpu() -> None:
    found = parse_mig_configs(of('{"devices": "all", "device-filter": "", "mig-enabled": false}'))
    assert found.configs["one"][0].is_about(3, 1, 2)
    assert found.warnings == ()


def test_the_only_config_needs_no_name_and_others_are_suggested() -> None:
    assert parse_mig_configs(of(OK)).chosen()[0] == "one"
    two = parse_mig_configs(f'{{"version": "v1", "mig-configs": {{"all-1g.5gb": [{OK}], "two": [{OK}]}}}}')
    with pytest.raises(ConfigError, match="missing required flag 'selected-config' when more than one"):
        two.chosen()
    with pytest.raises(ConfigError, match=r"selected mig-config not present: all-1g\.5g") as refused:
        two.chosen("all-1g.5g")
    assert "all-1g.5gb" in refused.value.remedy


@given(st.integers(0, 2**32 - 1), st.one_of(st.none(), st.integers(0, 2**32 - 1)), st.integers(0, 2**32 - 1))
def test_packed_ids_are_compared_as_numbers(device: int, subsystem: int | None, other: int) -> None:
    text = packed_text(device) + ("" if subsystem is None else f":{subsystem}")
    found = parse_pci_filter(text)
    assert found.matches(device, other if subsystem is None else subsystem)
    assert not found.matches(device ^ 1, subsystem or 0)
    assert found.matches(device, other) == (subsystem is None or subsystem == other)


@given(st.binary(max_size=300))
def test_no_bytes_crash_it(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_mig_configs(content)
