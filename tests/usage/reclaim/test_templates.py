"""A receiver's own text: fields and nothing that computes; what is filled in is nobody's way in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.crd.usagepolicy import UsageReceiver, UsageSecretRef
from kgpu.usage.reclaim import filling
from kgpu.usage.reclaim.filling import LONGEST, LONGEST_COMMAND, filled
from kgpu.usage.reclaim.messages import escape_markdown, escape_slack, message
from kgpu.usage.reclaim.model import read_policy
from kgpu.usage.reclaim.record import NoticeKind, ReclaimNotice
from kgpu.usage.reclaim.templates import FIELDS, MessageTemplate, TemplateField, read_template
from tests.budget import tries

NOW = 1_786_356_000.0
ALL = " | ".join(f"{{{row.name}}}" for row in FIELDS)


def notice(**fields: Any) -> ReclaimNotice:
    return ReclaimNotice(**{
        "id": "x", "kind": NoticeKind.IDLE, "policy": "research", "namespace": "research", "who": "Deployment research/a",
        "what": "8 x H100 on n1, held-idle", "at": NOW, "since": NOW - 9000, "per_hour": 24_480_000,
        "keep": "kubectl annotate deployment/a", **fields,
    })  # fmt: skip


def receiver(template: str, kind: str = "slack", **fields: Any) -> UsageReceiver:
    return UsageReceiver(type=kind, secret_ref=UsageSecretRef(name="s"), template=template, **fields)  # type: ignore[arg-type]


def sent(template: str, *notices: ReclaimNotice, kind: str = "slack") -> str:
    body = json.loads(message(receiver(template, kind), notices, cluster="", now=NOW))
    return str(body["text"] if kind != "teams" else body["attachments"][0]["content"]["body"][1]["text"])


def test_every_field_is_filled() -> None:
    assert set(filling._TEXTS) == {row.name for row in FIELDS}
    assert filled(read_template(ALL, "t"), notice(deadline=NOW + 60, assumed="a guess"), NOW, str, str) == (
        "Deployment research/a | research | 8 x H100 on n1, held-idle | 2h 30m | 2026-08-10T07:30:00Z | 61.20 USD | "
        "24.48 USD | a guess | 2026-08-10T10:01:00Z | kubectl annotate deployment/a | research"
    )


def test_what_is_not_known_is_said() -> None:
    found = filled(read_template("{idle} {since} {wasted} {deadline}", "t"), notice(since=None), NOW, str, str)
    assert found == "unknown unknown unknown none"


WRONG = {
    "an unknown field": ("{hwo}", "there is no field {hwo}", "did you mean"),
    "another syntax": ("{{ .Who }} {who.__class__}", "there is no field {who.__class__}", ""),
    "a format": ("{who:>99999999}", "there is no field", ""),
    "an index": ("{0}", "there is no field {0}", ""),
    "nothing in it": ("{}", "there is no field {}", ""),
    "a single brace": ("a } b", "a single } at character 3", "write }} for"),
    "an open brace": ("{who", "a single { at character 1", "write {{ for"),
    "a control character": ("a\x1b[31m", "control character (0x1b)", ""),
    "fields without end": ("{who}" * 21, "21 fields", "remove"),
    "the command twice": ("{keep} {keep}", "{keep} several times", "remove"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_template_is_refused_with_the_policy(case: str) -> None:
    text, what, remedy = WRONG[case]
    with pytest.raises(ConfigError) as raised:
        read_template(text, "spec.notify[0].template")
    assert what in raised.value.what
    assert remedy in raised.value.remedy
    policy = {
        "metadata": {"name": "p"},
        "spec": {"mode": "notify", "notify": [{"type": "slack", "secretRef": {"name": "s"}, "template": text}]},
    }
    found = read_policy(policy, "gpu-operator")
    assert found.policy is None
    assert found.problem is not None
    assert "spec.notify[0].template" in found.problem.what
    assert remedy in found.problem.remedy
    assert "kubectl edit gpuusagepolicy p" in found.problem.remedy


def test_braces_and_lines_are_text() -> None:
    assert filled(read_template("{{who}}\n{{{who}}}", "t"), notice(), NOW, str, str) == (
        "{who}\n{Deployment research/a}"
    )


HOSTILE = "{keep}<!channel> <https://evil|x> {who} *b* `c` \x1b[31m\n\u202e{{"


@pytest.mark.parametrize("kind", ["slack", "teams", "webhook"])
def test_a_hostile_name_is_only_text(kind: str) -> None:
    told = sent("<https://runbook|what to do> {who}", notice(who=HOSTILE), kind=kind)
    assert "<https://runbook|what to do> " in told  # The author's own markup stays.
    assert "kubectl annotate deployment/a" not in told.split("keep it:")[0]  # Its {keep} is not filled in.
    for sign in ("\x1b", "\u202e"):
        assert sign not in told
    if kind == "slack":
        assert "<!channel>" not in told
        assert "&lt;!channel&gt;" in told


def test_a_warning_never_lacks_its_deadline_and_the_command() -> None:
    warning = notice(kind=NoticeKind.WARNING, deadline=NOW + 1800)
    told = sent("{who} is idle", warning)
    assert "stopped at 2026-08-10T10:30:00Z unless it is used" in told
    assert "`kubectl annotate deployment/a`" in told
    told = sent("{who} ends {deadline}: {keep}", warning)
    assert told.count("2026-08-10T10:30:00Z") == told.count("kubectl") == 1


@pytest.mark.parametrize("kind", [NoticeKind.STOPPED, NoticeKind.RESOLVED, NoticeKind.FROZEN])
def test_messages_without_figures_have_their_own_text(kind: NoticeKind) -> None:
    assert "MINE" not in sent("MINE {who}", notice(kind=kind))


ANY = st.text(max_size=3000)


@tries(200)
@given(st.lists(st.sampled_from(FIELDS) | st.text(max_size=20), max_size=20), ANY, ANY,
       st.sampled_from([escape_slack, escape_markdown, str]))  # fmt: skip
def test_a_filled_text_is_short_enough_for_a_message(
    parts: list[str | TemplateField], who: str, keep: str, escape: Any
) -> None:
    template = MessageTemplate(tuple(parts))
    commands = sum(isinstance(part, TemplateField) and part.name == "keep" for part in parts)
    text = filled(template, notice(who=who, what=who, assumed=who, keep=keep), NOW, escape, escape)
    assert len(text) <= LONGEST + commands * LONGEST_COMMAND


@tries(200)
@given(st.text(max_size=500))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        template = read_template(text, "t")
    except ConfigError as error:
        assert error.expected  # noqa: PT017 - either is right
    else:
        plain = "".join(part for part in template.parts if isinstance(part, str))
        assert len(plain) <= len(text)
