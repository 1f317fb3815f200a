"""When repairs may begin by themselves."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.operations.windows import DAYS, opens_at, read_windows


def moment(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


NIGHT = [{"days": ["Fri"], "start": "22:00", "end": "06:00"}]
BERLIN = [{"start": "01:00", "end": "03:00", "timeZone": "Europe/Berlin"}]


@pytest.mark.parametrize(
    ("windows", "now", "opens"),
    [
        ([], "2026-11-27T12:00:00+00:00", "2026-11-27T12:00:00+00:00"),
        (NIGHT, "2026-11-27T21:59:59+00:00", "2026-11-27T22:00:00+00:00"),
        (NIGHT, "2026-11-27T22:00:00+00:00", "2026-11-27T22:00:00+00:00"),
        (NIGHT, "2026-11-28T05:59:59+00:00", "2026-11-28T05:59:59+00:00"),  # Saturday: the window is Friday's
        (NIGHT, "2026-11-28T06:00:00+00:00", "2026-12-04T22:00:00+00:00"),
        (BERLIN, "2026-07-01T00:30:00+00:00", "2026-07-01T00:30:00+00:00"),  # 02:30 in Berlin
        (BERLIN, "2026-01-01T02:30:00+00:00", "2026-01-02T00:00:00+00:00"),
        ([{"start": "08:00", "end": "08:00"}], "2026-01-01T02:30:00+00:00", "2026-01-01T02:30:00+00:00"),
        ([*NIGHT, {"days": ["Mon"], "start": "09:00", "end": "10:00"}], "2026-11-28T07:00:00+00:00",
         "2026-11-30T09:00:00+00:00"),
    ],
)  # fmt: skip
def test_when_the_next_one_opens(windows: list[dict[str, Any]], now: str, opens: str) -> None:
    assert opens_at(read_windows(windows, "w"), moment(now)) == moment(opens)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("night", "w is not a list"),
        ([{}] * 17, "at most 16"),
        (["night"], "w[0] is 'night'"),
        ([{"start": "22:00"}], "a mapping such as"),
        ([{"start": "22:00", "end": "06:00", "day": "Mon"}], "a mapping such as"),
        ([{"start": 1320, "end": "06:00"}], "write it in quotes"),
        ([{"start": "24:00", "end": "06:00"}], "w[0].start is '24:00'"),
        ([{"start": "2:00", "end": "06:00"}], 'a time such as "22:00"'),
        ([{"start": "22:00", "end": "06:00", "days": ["Monday"]}], "a list of: Mon"),
        ([{"start": "22:00", "end": "06:00", "days": [["Mon"]]}], "a list of: Mon"),
        ([{"start": "22:00", "end": "06:00", "timeZone": "Mars/Olympus"}], "a time zone such as"),
        ([{"start": "22:00", "end": "06:00", "timeZone": "../../etc/passwd"}], "a time zone such as"),
        ([{"start": "22:00", "end": "06:00", "timeZone": 7}], "a time zone such as"),
    ],
)
def test_what_is_wrong_is_said(value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_windows(value, "w")
    assert said in error.value.one_line()


@given(
    st.lists(st.sampled_from(DAYS), max_size=7, unique=True), st.times(), st.times(),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Chatham"]), st.floats(1.7e9, 2.0e9),
)  # fmt: skip
def test_every_window_opens_within_nine_days(
    days: list[str], start: dt.time, end: dt.time, zone: str, now: float
) -> None:
    row = {"days": days, "start": f"{start:%H:%M}", "end": f"{end:%H:%M}", "timeZone": zone}
    opens = opens_at(read_windows([row], "w"), now)
    assert now <= opens < math.inf
    assert opens_at(read_windows([row], "w"), opens) == opens, "it is open once it opens"
