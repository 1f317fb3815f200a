"""Log lines for people or for machines, over the standard library's logging; one record is one line.

Text looks like Kubernetes' own components (``I1121 09:31:40.123456 agent] message``), JSON has one object per line.
Control characters in a message are escaped, so that no outside text can forge a line, and what looks like a credential
is blanked: the last defence, since nothing should log one in the first place.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Final, TextIO

from kgpu.base.advice import Advice, Severity

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS: Final = ("text", "json")

_LEVEL_OF: Final = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}
_CREDENTIALS: Final = re.compile(
    r"(?i)(?P<name>bearer\s+|basic\s+(?=[a-z0-9+/]{8})|(?:token|password|passwd|secret)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;]{4,}"
    r"|(?<![\w-])eyJ[\w-]{8,}+\.eyJ[\w-]{8,}\.[\w-]*"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")


def blank_credentials(text: str) -> str:
    """The text with bearer tokens, JSON web tokens and ``password=`` values replaced by ``***``."""
    return _CREDENTIALS.sub(lambda match: f"{match['name'] or ''}***", text)


def one_line(text: str) -> str:
    """The text with line ends and control characters escaped."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def _message(record: logging.LogRecord) -> str:
    """On one line, unless the program's own template has more: then lines are lines, e.g. of a JSON document."""
    text = record.getMessage()
    if isinstance(record.msg, str) and "\n" in record.msg:
        return "\n".join(map(one_line, text.split("\n")))
    return one_line(text)


class TextFormatter(logging.Formatter):
    """``L`` month day, time, component, message; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        now = time.localtime(record.created)
        stamp = time.strftime("%m%d %H:%M:%S", now)
        micros = int(record.created % 1 * 1_000_000)
        name = record.name.removeprefix("kgpu.")
        text = f"{record.levelname[0]}{stamp}.{micros:06d} {name}] {_message(record)}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return blank_credentials(text)


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339, UTC), level, logger, message, and the fields of advice."""

    def format(self, record: logging.LogRecord) -> str:
        seconds, fraction = divmod(record.created, 1)
        fields: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(fraction * 1000):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": blank_credentials(record.getMessage()),
        }
        advice = getattr(record, "advice", None)
        if isinstance(advice, Advice):
            fields |= {
                "subject": advice.subject,
                "reason": advice.reason,
                "why": blank_credentials(advice.why),
                "evidence": [blank_credentials(fact) for fact in advice.evidence],
                "remedy": advice.remedy,
            }
        if record.exc_info:
            fields["traceback"] = blank_credentials(self.formatException(record.exc_info))
        return json.dumps(fields)


def configure(*, level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """Send the root logger's records to ``stream`` (standard error when None). Replaces what was configured before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    # Request lines of client libraries are theirs to debug, not news of this node.
    for noisy in ("httpx", "httpcore", "httpx2", "httpcore2", "h2", "hpack", "grpclib", "lightkube", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, LEVELS[level]))


def log_advice(logger: logging.Logger, advice: Advice) -> None:
    """Write advice at the level of its severity."""
    logger.log(_LEVEL_OF[advice.severity], "%s", advice.one_line(), extra={"advice": advice})
