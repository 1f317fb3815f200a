"""What is sent: the CloudEvent, its id, and the text for chats."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice, Severity
from kgpu.notifications.payload import MAX_TEXT, PLAIN, EventDetails, PayloadFormat, body_of
from tests.budget import tries

AT = 1_700_000_000.0
STOPPED = Advice(
    subject="gpu-7", what="Reboot reboot-gpu-7 waits for approval", remedy="kgpu operations approve reboot-gpu-7",
    reason="WaitsForApproval", severity=Severity.WARNING,
)  # fmt: skip
DETAILS = EventDetails(
    kind="operation.unapproved", identity=("uid-1", "Pending"),
    data={"operation": "reboot-gpu-7", "type": "Reboot", "phase": "Pending", "result": ""},
)  # fmt: skip


def event(
    advice: Advice = STOPPED, details: EventDetails = DETAILS, *, cluster: str = "prod", moment: float = AT
) -> dict[str, Any]:
    decoded = json.loads(body_of(advice, details, PayloadFormat.CLOUD_EVENTS, cluster=cluster, moment=moment))
    assert isinstance(decoded, dict)
    return decoded


def test_a_cloud_event_says_what_and_has_a_text_for_chats() -> None:
    made = event()
    assert re.fullmatch(r"[0-9a-f]{32}", made.pop("id"))
    assert made == {
        "specversion": "1.0",
        "source": "/kgpu/prod",
        "type": "dev.kgpu.operation.unapproved",
        "time": "2023-11-14T22:13:20Z",
        "subject": "gpu-7",
        "datacontenttype": "application/json",
        "data": {
            "reason": "WaitsForApproval", "severity": "warning", "message": "Reboot reboot-gpu-7 waits for approval",
            "remedy": "kgpu operations approve reboot-gpu-7", "operation": "reboot-gpu-7", "type": "Reboot",
            "phase": "Pending", "result": "",
        },
        "text": "[prod] warning: Reboot reboot-gpu-7 waits for approval; to do: kgpu operations approve reboot-gpu-7",
    }  # fmt: skip


def test_a_text_alone_has_nothing_else() -> None:
    body = body_of(STOPPED, DETAILS, PayloadFormat.TEXT, cluster="", moment=AT)
    assert json.loads(body) == {"text": event(cluster="")["text"]}
    assert PayloadFormat.TEXT.content_type == "application/json"


def test_the_same_change_has_the_same_id_whoever_tells_it_and_when() -> None:
    assert event()["id"] == event(replace(STOPPED, what="in other words"), moment=AT + 86400)["id"]


@pytest.mark.parametrize(
    "other", [replace(DETAILS, identity=("uid-2", "Pending")), replace(DETAILS, kind="operation.started")]
)
def test_another_change_has_another_id(other: EventDetails) -> None:
    assert event()["id"] != event(details=other)["id"]


def test_the_same_words_of_another_cluster_or_day_are_another_event() -> None:
    known = {
        event(details=PLAIN)["id"],
        event(details=PLAIN, cluster="test")["id"],
        event(details=PLAIN, moment=AT + 86400)["id"],
    }
    assert len(known) == 3
    assert event(details=PLAIN, moment=AT + 60)["id"] in known


def test_an_event_about_nothing_in_particular_has_no_subject() -> None:
    assert "subject" not in event(replace(STOPPED, subject=""))


@tries(100)
@given(st.text(max_size=50), st.text(), st.text(alphabet="a\n\x1b\u2028\ud800 ", max_size=20))
def test_whatever_is_quoted_the_body_is_bounded_json_of_single_lines(subject: str, what: str, why: str) -> None:
    advice = Advice(subject=subject, what=what * 50, why=why, remedy=why)
    made = event(advice)
    texts = [made["text"], *made["data"].values(), made.get("subject", "")]
    assert all(text.isprintable() and len(text) <= MAX_TEXT for text in texts)


def test_what_looks_like_a_credential_is_blanked() -> None:
    made = event(replace(STOPPED, what="the pod said password=hunter22"))
    assert "hunter22" not in json.dumps(made)
