"""Pure: what receivers get: one message per namespace and kind: who, what, since when, how much, and how to keep it.

Names, labels and products come from anybody: they are cut, made printable, and escaped for the receiver's markup. No
environment of a pod and no URL is in any message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats.crd.usagepolicy import UsageReceiver
from kgpu.formats.usage import MILLION
from kgpu.usage.reclaim.figures import amount, waste
from kgpu.usage.reclaim.filling import FILLED, filled
from kgpu.usage.reclaim.guards import span
from kgpu.usage.reclaim.record import NoticeKind, ReclaimNotice
from kgpu.usage.reclaim.templates import DEADLINE, KEEP, MessageTemplate, read_template

MOST_LINES: Final = 20
"""Workloads that a message names; the rest is counted. Slack takes 3000 characters a block."""
MAX_LINE: Final = 600
MAX_TEXT: Final = 2900
_TITLES: Final = {
    NoticeKind.IDLE: "Idle GPUs in {place}",
    NoticeKind.NODE: "Idle GPU nodes",
    NoticeKind.WARNING: "Will be stopped: idle GPUs in {place}",
    NoticeKind.STOPPED: "Stopped: idle GPUs in {place}",
    NoticeKind.RESOLVED: "In use again: GPUs in {place}",
    NoticeKind.FROZEN: "Reclaiming idle GPUs is paused",
}


def key_of(receiver: UsageReceiver) -> str:
    """A receiver's name on record; it says nothing of the URL."""
    return f"{receiver.type}:{receiver.secret_ref.name}/{receiver.secret_ref.key}"


def line_of(notice: ReclaimNotice, now: float) -> str:
    """One notice as one line of plain text."""
    parts = [f"{notice.who}: {notice.what}"]
    if notice.since is not None and notice.kind is not NoticeKind.RESOLVED:
        parts.append(f"idle for {span(now - notice.since)} (since {stamp_of(notice.since)})")
    cost = waste(notice, now)
    if notice.per_hour and notice.kind is not NoticeKind.RESOLVED:
        rate = f"{amount(notice.per_hour, notice.currency)} an hour"
        told = f"{amount(cost, notice.currency)} wasted, {rate}" if cost is not None else rate
        parts.append(f"{told} ({notice.assumed})" if notice.assumed else told)
    if notice.deadline is not None:
        parts.append(_deadline(notice.deadline))
    return one_line("; ".join(parts), MAX_LINE)


def message(receiver: UsageReceiver, notices: Sequence[ReclaimNotice], *, cluster: str, now: float) -> bytes:
    """The body of a POST about notices of one kind and namespace."""
    return json.dumps(_FORMS[receiver.type](receiver, notices, cluster, now)).encode()


def batches(notices: Iterable[ReclaimNotice], receiver: str) -> list[tuple[ReclaimNotice, ...]]:
    """What waits for a receiver, one message each: by policy, namespace and kind, the oldest first."""
    found: dict[tuple[str, str, NoticeKind], list[ReclaimNotice]] = {}
    for one in notices:
        if receiver in one.waiting:
            found.setdefault((one.policy, one.namespace, one.kind), []).append(one)
    return [tuple(several) for several in found.values()]


def _title(notices: Sequence[ReclaimNotice], cluster: str) -> str:
    first = notices[0]
    title = _TITLES[first.kind].format(place=one_line(first.namespace, 80) or "the cluster")
    return f"[{one_line(cluster, 80)}] {title}" if cluster else title


def _lines(
    receiver: UsageReceiver, notices: Sequence[ReclaimNotice], now: float, escape: Callable[[str], str],
    code: Callable[[str], str],
) -> list[str]:  # fmt: skip
    template = read_template(receiver.template, "template") if receiver.template else None
    lines: list[str] = []
    for one in notices[:MOST_LINES]:
        line = f"• {_line(template if one.kind in FILLED else None, one, now, escape, code)}"
        if sum(len(known) for known in lines) + len(line) > MAX_TEXT - 100:
            break
        lines.append(line)
    if len(lines) < len(notices):
        lines.append(f"• and {len(notices) - len(lines)} more: kgpu idle")
    return lines


def _line(
    template: MessageTemplate | None, one: ReclaimNotice, now: float, escape: Callable[[str], str],
    code: Callable[[str], str],
) -> str:  # fmt: skip
    """One notice, with what nobody may miss: until when it has to be used, and what keeps it."""
    line = escape(line_of(one, now)) if template is None else filled(template, one, now, escape, code)
    if template is not None and one.deadline is not None and not template.count(DEADLINE):
        line += f"; {escape(_deadline(one.deadline))}"
    if one.keep and not (template is not None and template.count(KEEP)):
        line += f" — keep it: {code(one_line(one.keep, 300))}"
    return line


def _deadline(at: float) -> str:
    return f"stopped at {stamp_of(at)} unless it is used"


def escape_slack(text: str) -> str:
    """Text for Slack, as it wants it escaped; without what makes links and mentions of it nothing notifies anybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack(receiver: UsageReceiver, notices: Sequence[ReclaimNotice], cluster: str, now: float) -> Mapping[str, Any]:
    mentions = " ".join(map(_mention, receiver.mentions))
    title = escape_slack(_title(notices, cluster))
    lines = _lines(receiver, notices, now, escape_slack, lambda text: f"`{escape_slack(text.replace('`', chr(39)))}`")
    head = f"*{title}*{' ' + mentions if mentions else ''}"
    body = "\n".join((head, *lines))
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": body[:MAX_TEXT]}}]
    return {
        "text": body[:MAX_TEXT], "blocks": blocks, **({"channel": receiver.channel} if receiver.channel else {}),
    }  # fmt: skip


def _mention(word: str) -> str:
    if word in {"here", "channel"}:
        return f"<!{word}>"
    return f"<!subteam^{word}>" if word.startswith("S") else f"<@{word}>"


_MARKUP: Final = re.compile(r"([\\`*_{}\[\]()#+!|~<>])")


def escape_markdown(text: str) -> str:
    """Text for Teams' cards, whose texts are Markdown."""
    return _MARKUP.sub(r"\\\1", text)


def _teams(receiver: UsageReceiver, notices: Sequence[ReclaimNotice], cluster: str, now: float) -> Mapping[str, Any]:
    lines = _lines(receiver, notices, now, escape_markdown, escape_markdown)
    blocks = [
        {"type": "TextBlock", "text": escape_markdown(_title(notices, cluster)), "weight": "Bolder", "wrap": True},
        *({"type": "TextBlock", "text": line, "wrap": True} for line in lines),
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
        "body": blocks,
    }  # fmt: skip
    return {
        "type": "message",
        "attachments": [
            {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
        ],
    }


def _webhook(receiver: UsageReceiver, notices: Sequence[ReclaimNotice], cluster: str, now: float) -> Mapping[str, Any]:
    first = notices[0]
    return {
        "version": 1,
        "kind": str(first.kind),
        "cluster": cluster,
        "policy": first.policy,
        "namespace": first.namespace,
        "text": "\n".join((_title(notices, cluster), *_lines(receiver, notices, now, str, str))),
        "items": [_item(one, now) for one in notices],
    }


def _item(one: ReclaimNotice, now: float) -> Mapping[str, Any]:
    cost = waste(one, now)
    return {
        "id": one.id, "who": one_line(one.who, 300), "what": one_line(one.what, MAX_LINE),
        "since": None if one.since is None else stamp_of(one.since), "currency": one.currency,
        "perHour": f"{Decimal(one.per_hour) / MILLION}",
        "wasted": None if cost is None else f"{Decimal(cost) / MILLION}",
        "deadline": None if one.deadline is None else stamp_of(one.deadline), "keep": one.keep or None,
        "assumed": one.assumed or None,
    }  # fmt: skip


_FORMS: Final[Mapping[str, Callable[[UsageReceiver, Sequence[ReclaimNotice], str, float], Mapping[str, Any]]]] = {
    "slack": _slack,
    "teams": _teams,
    "webhook": _webhook,
}
