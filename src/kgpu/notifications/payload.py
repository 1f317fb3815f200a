"""What is sent about advice: a CloudEvent 1.0 in its structured JSON form, or a text alone. Pure.

A CloudEvent's ``id`` follows from what it tells, so that a receiver can drop what it is sent twice: after a lost
answer, or by two processes of which the second took over. It also has ``text``, which chat programs show.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from kgpu.base.advice import Advice, Severity
from kgpu.base.log import blank_credentials
from kgpu.base.printable import one_line

MAX_TEXT: Final = 2000
"""The most characters of any text in a payload."""
_TYPE_PREFIX: Final = "dev.kgpu."


class PayloadFormat(enum.StrEnum):
    """How a payload is written."""

    CLOUD_EVENTS = "CloudEvents"
    TEXT = "Text"

    @property
    def content_type(self) -> str:
        """The media type of the body."""
        return "application/cloudevents+json" if self is PayloadFormat.CLOUD_EVENTS else "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetails:
    """What a program may want to know beside the advice. ``kind`` is the event's type without its prefix, and
    ``identity`` is what makes it this event and no other; without it, the advice and its day do.
    """

    kind: str = "advice"
    identity: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)


PLAIN: Final = EventDetails()


def body_of(advice: Advice, details: EventDetails, form: PayloadFormat, *, cluster: str, moment: float) -> bytes:
    """The body to send. ``cluster`` is what the admin calls the cluster; ``moment`` is in seconds since 1970."""
    text = {"text": text_of(advice, cluster)}
    whole = text if form is PayloadFormat.TEXT else {**cloud_event(advice, details, cluster, moment), **text}
    return json.dumps(whole).encode()


def text_of(advice: Advice, cluster: str) -> str:
    """The advice for a chat, on one line."""
    severity = "" if advice.severity is Severity.INFO else f"{advice.severity}: "
    return _clean(f"{f'[{cluster}] ' if cluster else ''}{severity}{advice.one_line()}")


def cloud_event(advice: Advice, details: EventDetails, cluster: str, moment: float) -> dict[str, object]:
    """The CloudEvent without its ``text``."""
    at = dt.datetime.fromtimestamp(moment, dt.UTC)
    source = f"/kgpu/{quote(cluster, safe='')}" if cluster else "/kgpu"
    known = details.identity or (advice.subject, advice.reason, advice.what, advice.why, f"{at:%Y-%m-%d}")
    identity = json.dumps([source, details.kind, *known])
    data = {"reason": advice.reason, "severity": str(advice.severity), "message": advice.statement}
    return {
        "specversion": "1.0",
        "id": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "source": source,
        "type": _TYPE_PREFIX + details.kind,
        "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        **({"subject": _clean(advice.subject)} if advice.subject else {}),  # which must not be empty
        "datacontenttype": "application/json",
        "data": {key: _clean(text) for key, text in {**data, "remedy": advice.remedy, **details.data}.items()},
    }


def _clean(text: str) -> str:
    return one_line(blank_credentials(text), MAX_TEXT)
