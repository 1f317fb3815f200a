"""Messages: one per namespace and kind, escaped for each receiver's markup, cut, and with all that somebody needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.crd.usagepolicy import UsageReceiver, UsageSecretRef
from kgpu.usage.reclaim.messages import MAX_TEXT, batches, key_of, message
from kgpu.usage.reclaim.record import NoticeKind, ReclaimNotice
from tests.budget import tries

NOW = 1_786_356_000.0


def receiver(kind: Any = "slack", **more: Any) -> UsageReceiver:
    return UsageReceiver(type=kind, secret_ref=UsageSecretRef(name="hook"), **more)


def notice(**more: Any) -> ReclaimNotice:
    fields = {
        "id": "1", "kind": NoticeKind.IDLE, "policy": "p", "namespace": "team-a", "who": "Deployment team-a/llama",
        "what": "8 x NVIDIA A100 on gpu-1, held-idle", "at": NOW, "since": NOW - 7200, "per_hour": 24_480_000,
        "keep": "kubectl annotate x", "waiting": ("slack:hook/url",), **more,
    }  # fmt: skip
    return ReclaimNotice(**fields)


def body(kind: str, *notices: ReclaimNotice, cluster: str = "", **more: Any) -> Any:
    return json.loads(message(receiver(kind, **more), notices, cluster=cluster, now=NOW))


def text(kind: str, *notices: ReclaimNotice, **more: Any) -> str:
    found = body(kind, *notices, **more)
    if kind == "teams":
        return "\n".join(block["text"] for block in found["attachments"][0]["content"]["body"])
    return str(found["text"])


def test_slack_says_who_what_how_long_how_much_and_how_to_keep_it() -> None:
    found = body("slack", notice(), cluster="prod", mentions=("U123", "S456", "here"), channel="#gpu-costs")
    assert found["channel"] == "#gpu-costs"
    assert found["text"] == found["blocks"][0]["text"]["text"]
    assert found["text"].splitlines() == [
        "*[prod] Idle GPUs in team-a* <@U123> <!subteam^S456> <!here>",
        (
            "• Deployment team-a/llama: 8 x NVIDIA A100 on gpu-1, held-idle; idle for 2h (since 2026-08-10T08:00:00Z); "
            "48.96 USD wasted, 24.48 USD an hour — keep it: `kubectl annotate x`"
        ),
    ]


def test_a_warning_has_its_deadline() -> None:
    said = text("slack", notice(kind=NoticeKind.WARNING, deadline=NOW + 1800))
    assert "Will be stopped" in said
    assert "stopped at 2026-08-10T10:30:00Z unless it is used" in said


def test_a_price_that_is_assumed_is_told() -> None:
    assert "24.48 USD an hour (no price is known for x)" in text("slack", notice(assumed="no price is known for x"))


HOSTILE = "<!channel> <https://evil|here> & `rm` *bold*\n• team-b/x: all fine \x1b[2J \u202eabc"


@pytest.mark.parametrize("field", ["who", "what", "keep", "namespace", "assumed"])
def test_slack_notifies_nobody_by_a_name(field: str) -> None:
    said = text("slack", notice(**{field: HOSTILE}))
    assert "<" not in said
    assert "> " not in said
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert len(said.splitlines()) == 2, "a name makes no line of its own"


@pytest.mark.parametrize("field", ["who", "what", "keep", "namespace"])
def test_teams_shows_markup_as_text(field: str) -> None:
    said = text("teams", notice(**{field: "[click](https://evil) **x** <at>all</at>"}))
    assert r"\[click\]\(https://evil\) \*\*x\*\* \<at\>all\</at\>" in said


def test_the_plain_form_has_data() -> None:
    found = body("webhook", notice(), notice(id="2", since=None, per_hour=0))
    assert (found["version"], found["kind"], found["namespace"]) == (1, "idle", "team-a")
    one, other = found["items"]
    assert (one["perHour"], one["wasted"], one["since"]) == ("24.48", "48.96", "2026-08-10T08:00:00Z")
    assert (other["wasted"], other["since"]) == (None, None)


@pytest.mark.parametrize("kind", ["slack", "teams"])
def test_of_very_many_the_rest_is_counted(kind: str) -> None:
    said = text(kind, *(notice(id=str(number), what="x" * 300) for number in range(500)))
    named = said.count("held-idle") or said.count("Deployment")
    assert f"and {500 - named} more: kgpu idle" in said.replace("\\", "")


@tries(200)
@given(st.text(max_size=2000), st.text(max_size=2000), st.integers(1, 40))
def test_any_text_fits_into_a_block(who: str, keep: str, count: int) -> None:
    found = body("slack", *(notice(id=str(number), who=who, keep=keep) for number in range(count)))
    assert len(found["blocks"][0]["text"]["text"]) <= MAX_TEXT
    assert "<!" not in found["text"]


def test_what_waits_is_sent_by_policy_namespace_and_kind() -> None:
    several = [
        notice(id="1"), notice(id="2"), notice(id="3", namespace="b"), notice(id="4", kind=NoticeKind.NODE),
        notice(id="5", waiting=("teams:x/url",)),
    ]  # fmt: skip
    found = batches(several, key_of(receiver()))
    assert [[one.id for one in batch] for batch in found] == [["1", "2"], ["3"], ["4"]]
