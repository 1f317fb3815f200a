"""A node's report of its roles: what is written is read, bounded and printable; anything else is nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.agent_report import (
    FORMAT,
    MAX_BYTES,
    MAX_REASON,
    MAX_ROLES,
    MAX_WORD,
    AgentReport,
    RoleReport,
    decode,
    encode,
    role,
)

words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=MAX_WORD)
sentences = st.lists(words, max_size=4).map(lambda parts: " ".join(part for part in parts if part))
roles = st.builds(role, words, sentences, words, sentences)
reports = st.builds(
    AgentReport, version=words, generation=st.integers(0, 2**53), roles=st.dictionaries(words, roles, max_size=9),
    driver=words, driver_source=words, cuda=words, gpus=st.integers(0, 16),
)  # fmt: skip


@given(reports)
def test_what_is_written_is_read(report: AgentReport) -> None:
    assert decode(encode(report)) == report


def test_an_older_agent_says_no_format_and_a_later_one_is_not_understood() -> None:
    assert "format" not in json.loads(
        encode(AgentReport(version="1"))
    )  # an older operator sees what it has always seen
    assert decode('{"version":"0.1.0","gpus":8}') == AgentReport(version="0.1.0", gpus=8)
    assert decode('{"version":"0.1.0","gpus":8,"format":1,"new":[1]}') == AgentReport(version="0.1.0", gpus=8)
    assert decode(f'{{"version":"9.0.0","gpus":8,"format":{FORMAT + 1}}}') is None
    assert decode('{"version":"9.0.0","format":"1"}') is None


def long(**fields: Any) -> AgentReport:
    report = decode(json.dumps(fields))
    assert report is not None
    return report


@pytest.mark.parametrize("end", ["", "\x1b", "\\"])
def test_it_has_bounds_whoever_has_written_it(end: str) -> None:
    text = "x" * 2000 + end
    said = {"state": text, "reason": text, "why": text, "remedy": text}
    report = long(version=text, driver=text, driverSource=text, cuda=text, roles={text: said})
    (name, found), *_ = report.roles.items()
    assert {len(report.version), len(report.driver), len(report.driver_source), len(report.cuda), len(name)} == {
        MAX_WORD
    }
    assert (len(found.state), len(found.why), len(found.reason), len(found.remedy)) == (MAX_WORD, MAX_WORD) + (
        MAX_REASON,
    ) * 2
    assert all(part.isprintable() for part in (report.version, name, *msgspec.structs.astuple(found)))
    many = long(roles={str(number): {"state": "running"} for number in range(99)})
    assert many.roles == {str(number): RoleReport(state="running") for number in range(MAX_ROLES)}
    assert decode(json.dumps({"version": "x" * MAX_BYTES})) is None


@pytest.mark.parametrize("field", ["version", "driver", "driver_source", "cuda"])
def test_one_word_too_long_is_cut(field: str) -> None:
    report = decode(encode(AgentReport(**{field: "x" * (MAX_WORD + 1)})))
    assert report is not None
    assert len(getattr(report, field)) == MAX_WORD


@pytest.mark.parametrize(
    ("field", "most"), [("state", MAX_WORD), ("why", MAX_WORD), ("reason", MAX_REASON), ("remedy", MAX_REASON)]
)
def test_one_text_of_a_role_too_long_is_cut(field: str, most: int) -> None:
    said = RoleReport(**{"state": "running", field: "x" * (most + 1)})
    report = decode(encode(AgentReport(roles={"labels": said})))
    assert report is not None
    assert len(getattr(report.roles["labels"], field)) == most
