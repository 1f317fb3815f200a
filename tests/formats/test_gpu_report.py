"""Reports of a node's GPUs: what is written is read, bounded and printable; anything else is nothing."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import DriverFault
from kgpu.formats import names
from kgpu.formats.gpu_remedies import REBOOT, REPLACE, RESET, words
from kgpu.formats.gpu_report import (
    MAX_BYTES,
    MAX_FACTS,
    MAX_GPUS,
    MAX_SENTENCES,
    MAX_TEXT,
    GpuReport,
    ReportedGpu,
    decode,
    encode,
    of_node,
    rendered,
    report,
)
from kgpu.formats.xid import xid_of
from kgpu.formats.xid.action import Action
from kgpu.health.model import EvidenceSource, GpuEvidence

texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cf", "Co", "Cn")), max_size=20
)
gpus = st.builds(
    ReportedGpu, uuid=texts, index=st.none() | st.integers(0, 64), pci=texts, action=st.sampled_from(Action), reason=texts,
    works=st.booleans(), what=texts, remedy_key=st.sampled_from(["", RESET, REBOOT, "xid/79"]),
    facts=st.lists(texts, max_size=4).map(tuple), evidence=st.lists(texts, max_size=4).map(tuple),
    since=st.floats(0, 4e9), muted=texts,
)  # fmt: skip


faults = st.none() | st.sampled_from(DriverFault)


@given(st.lists(gpus, max_size=6), st.integers(0, 64), texts, faults)
def test_what_is_written_is_read(
    written: list[ReportedGpu], count: int, unreadable: str, fault: DriverFault | None
) -> None:
    said = report(written, count=count, unreadable=unreadable, fault=fault)
    assert decode(encode(said)) == said
    assert said.fault == (fault if unreadable else None)
    assert sorted(said.gpus, key=repr) == sorted(written, key=repr)


def test_it_is_short_by_construction() -> None:
    long = ReportedGpu(
        uuid="GPU-1", what="x" * 9999, evidence=("y" * 9999,) * 9, facts=tuple(f"xid:{n}" for n in range(99))
    )
    said = report([long] * 99, count=99)
    assert (len(said.gpus), said.more) == (MAX_GPUS, 99 - MAX_GPUS)
    (one, *_) = said.gpus
    assert (len(one.what), len(one.evidence), len(one.facts)) == (MAX_TEXT, MAX_SENTENCES, MAX_FACTS)
    assert len(encode(said)) <= MAX_BYTES
    assert said.bad == 99


def test_what_takes_no_work_is_named_first() -> None:
    muted, works = ReportedGpu(uuid="a", muted="in maintenance"), ReportedGpu(uuid="b", works=True)
    bad = ReportedGpu(uuid="c", action=Action.REBOOT)
    said = report([muted, works, bad], count=3)
    assert [one.uuid for one in said.gpus] == ["c", "b", "a"]
    assert said.bad == 1


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", '{"version":0}', '{"version":2,"gpus":[]}', '{"version":"1"}', '{"version":1,"gpus":{}}',
        '{"version":1,"gpus":[{"action":"explode"}]}', '{"version":1,"gpus":[{"index":"0"}]}', "[" * 100_000,
        '{"version":1,"gpus":[{"what":"' + "x" * MAX_BYTES + '"}]}', '{"version":1,"count":1e400}', "\udcff",
    ],
)  # fmt: skip
def test_what_is_no_report_of_this_version_is_none(text: str) -> None:
    assert decode(text) is None
    assert of_node({names.GPUS_ANNOTATION: text}) is None


def test_a_node_without_one_has_none() -> None:
    assert of_node({}) is None


def test_why_the_driver_can_not_be_read_is_a_key() -> None:
    said = report((), count=0, unreadable="nvml init failed: Driver Not Loaded", fault=DriverFault.NOT_LOADED)
    assert json.loads(encode(said))["fault"] == "driver-not-loaded"
    older, later = decode('{"version":1,"unreadable":"x"}'), decode('{"version":1,"unreadable":"x","fault":"asleep"}')
    assert older is not None
    assert later is not None
    assert (older.fault, later.fault) == (None, DriverFault.OTHER)
    assert decode('{"version":1,"unreadable":"x","fault":9}') is None


def test_a_later_version_may_have_more_fields() -> None:
    assert decode('{"version":1,"count":8,"new":{"a":[1]}}') == GpuReport(version=1, count=8)


def test_nothing_that_moves_the_screen_comes_through() -> None:
    bad = {
        "uuid": "a\x1b[2J",
        "what": "b\nc",
        "facts": ["xid:79\x07"],
        "evidence": ["d\u202ee"],
        "remedy": "check/\x1b",
    }
    found = decode(json.dumps({"version": 1, "count": 1, "gpus": [bad], "unreadable": "f\x1b"}))
    assert found is not None
    (gpu,) = found.gpus
    said = [found.unreadable, gpu.uuid, gpu.what, gpu.remedy_key, *gpu.facts, *gpu.evidence, rendered(found).message]
    assert all(text.isprintable() for text in said)


def test_a_remedy_is_looked_up() -> None:
    assert ReportedGpu(remedy_key=REPLACE).remedy == words(REPLACE)
    assert ReportedGpu(remedy_key="kubectl delete node n1").remedy == ""


@given(st.lists(st.sampled_from(["xid:79", "xid:95@1", "xid:x", "sxid:5", "driver:lost", "xid:", "xid:٣"]), max_size=6))
def test_numbers_are_those_of_xids(facts: list[str]) -> None:
    found = ReportedGpu(facts=tuple(facts)).xids
    assert set(found) <= {79, 95}
    assert len(found) == len(set(found))


@given(st.integers(0, 999_999_999), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_the_number_of_what_health_names(code: int, gi: int | None, ci: int | None) -> None:
    fact = GpuEvidence(
        source=EvidenceSource.XID,
        key=str(code),
        what="w",
        action=Action.INSPECT,
        gpu_instance=gi,
        compute_instance=ci if gi is not None else None,
    )
    assert xid_of(fact.name) == code
    assert xid_of(f"s{fact.name}") is None


def test_numbers_of_a_hostile_size_are_none() -> None:
    assert ReportedGpu(facts=("xid:" + "9" * 5000,)).xids == ()


@given(st.lists(gpus, max_size=12), st.integers(0, 64), texts)
def test_any_report_is_rendered(written: list[ReportedGpu], count: int, unreadable: str) -> None:
    shown = rendered(report(written, count=count, unreadable=unreadable))
    assert shown.status in ("True", "False", "Unknown")
    bad = [one for one in written if not one.works and not one.muted]
    assert (shown.status == "False") is bool(bad)
    assert msgspec.json.encode(shown.message)
