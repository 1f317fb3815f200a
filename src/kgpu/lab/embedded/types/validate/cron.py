"""Whether a CronJob's schedule is valid: five fields, or a name such as @hourly; errors are the real parser's."""

from __future__ import annotations

import re
from typing import Final

_FIELDS: Final[tuple[tuple[int, int, str], ...]] = (
    (0, 59, ""),
    (0, 23, ""),
    (1, 31, ""),
    (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    (0, 6, "sun mon tue wed thu fri sat"),
)
_NAMED: Final = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_DURATION: Final = re.compile(r"[-+]?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+")


def schedule_error(schedule: str) -> str:
    """What is wrong with the schedule, "" when it is valid."""
    text = schedule
    if text.startswith(("TZ=", "CRON_TZ=")):
        text = text.partition(" ")[2].strip()
    if text.startswith("@"):
        return _descriptor(text)
    parts = text.split()
    if len(parts) != len(_FIELDS):
        return f"expected exactly 5 fields, found {len(parts)}: [{' '.join(parts)}]"
    for part, (low, high, names) in zip(parts, _FIELDS, strict=True):
        start = low if names else 0
        known = {name: start + index for index, name in enumerate(names.split())} if names else {}
        for span in part.split(","):
            wrong = _range(span, low, high, known)
            if wrong:
                return wrong
    return ""


def _descriptor(text: str) -> str:
    if text in _NAMED:
        return ""
    if text.startswith("@every "):
        duration = text.removeprefix("@every ")
        if _DURATION.fullmatch(duration):
            return ""
        return f'failed to parse duration {text}: time: invalid duration "{duration}"'
    return f"unrecognized descriptor: {text}"


def _range(text: str, low: int, high: int, names: dict[str, int]) -> str:
    span, *steps = text.split("/")
    ends = span.split("-")
    if len(steps) > 1:
        return f"too many slashes: {text}"
    if ends[0] in {"*", "?"}:
        start, end = low, high
    else:
        if len(ends) > 2:
            return f"too many hyphens: {text}"
        numbers: list[int] = []
        for bound in ends:
            number = names.get(bound.lower())
            if number is None:
                if not re.fullmatch(r"[+-]?\d+", bound, re.ASCII):
                    return f'failed to parse int from {bound}: strconv.Atoi: parsing "{bound}": invalid syntax'
                number = int(bound)
            if number < 0:
                return f"negative number ({number}) not allowed: {bound}"
            numbers.append(number)
        start = numbers[0]
        end = numbers[-1] if len(numbers) > 1 or not steps else high
    if steps:
        if not re.fullmatch(r"[+-]?\d+", steps[0], re.ASCII):
            return f'failed to parse int from {steps[0]}: strconv.Atoi: parsing "{steps[0]}": invalid syntax'
        if int(steps[0]) == 0:
            return f"step of range should be a positive number: {text}"
    if start < low:
        return f"beginning of range ({start}) below minimum ({low}): {text}"
    if end > high:
        return f"end of range ({end}) above maximum ({high}): {text}"
    if start > end:
        return f"beginning of range ({start}) beyond end of range ({end}): {text}"
    return ""
