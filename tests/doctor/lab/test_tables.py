"""The breakages as tables: enough of them, and of every category.

Of 153 breakages 136 are real: made as the world would make them, so that what the doctor sees of them is what the lab
made of them. Programs and parts of others' stacks are shells in pods that say the real one's line and end. In the other
17 something that no lab has (a registry, a memory limit, a topology manager, Pod Security, an autoscaler, a queue) would
have written a status or an event; each says in ``played`` what was written in its place.
"""

from __future__ import annotations

from collections import Counter

from tests.doctor.catalogue import ROWS
from tests.doctor.lab.breaking import Break
from tests.doctor.lab.breaks import courses, hosts, operated, operators, scheduling, stack, vendors, workloads

WANTED = 60
ALL: tuple[Break, ...] = tuple(
    one
    for table in (courses, hosts, operated, operators, scheduling, stack, vendors, workloads)
    for one in table.BREAKS
)


def test_there_are_enough_of_every_category() -> None:
    real = [one for one in ALL if not one.played]
    groups = Counter(one.first.split("-")[0] for one in ALL)
    print(dict(groups))
    assert len(real) >= WANTED
    assert {name.split("-")[0] for name in ROWS} <= set(groups)
    assert f"Of {len(ALL)} breakages {len(real)} are real" in (__doc__ or "")


def test_each_is_another() -> None:
    assert [name for name, count in Counter(one.what for one in ALL).items() if count > 1] == []
    assert len({one.first for one in ALL}) >= WANTED
