"""The pairs as a table: what may be in one lab at once, how urgent each breakage is, and what a pair's look is held to."""

from __future__ import annotations

from kgpu.doctor.model import Finding, Report, Subject
from tests.doctor.lab import test_vendors
from tests.doctor.lab.breaking import Break
from tests.doctor.lab.breaks import hosts
from tests.doctor.lab.labs import FIRST, SMALL
from tests.doctor.lab.pairs import Pair, drawn, moved, place, wrong
from tests.doctor.lab.test_tables import ALL
from tests.doctor.lab.things import make, pod, relabel, taint, xid
from tests.doctor.lab.touching import exclude, touched
from tests.doctor.lab.urgency import ROWS


def broken(first: str, *steps: object, names: str = "team-a/broken") -> Break:
    return Break(what=f"{first} {steps}", first=first, names=names, steps=steps)  # type: ignore[arg-type]


def together(one: Break, other: Break) -> bool:
    return not exclude(touched(one), touched(moved(other)))


def test_what_touches_the_same_thing_of_a_node_excludes_the_other() -> None:
    waits = broken("SCH-08", make(pod(nodeSelector={"nvidia.com/gpu.product": "T4"})))
    small = {"kubernetes.io/hostname": SMALL}
    assert together(waits, waits)  # each in its own namespace
    assert not together(waits, broken("TNT-01", taint(FIRST, {"key": "a", "effect": "NoSchedule"})))
    assert not together(waits, broken("TS-03", relabel(SMALL, {"nvidia.com/gpu.product": "T4"})))
    assert together(waits, broken("HW-01", xid(79, node=FIRST)))
    assert together(broken("HW-01", xid(79, node=FIRST)), broken("HW-02", xid(95, node=FIRST, gpu=4)))
    assert not together(broken("HW-01", xid(79, node=FIRST)), broken("HW-02", xid(95, node=FIRST)))
    assert not together(broken("HW-01", xid(79, node=SMALL)), broken("SCH-00", make(pod(gpus=2, nodeSelector=small))))
    assert together(broken("HW-01", xid(79, node=FIRST)), broken("SCH-00", make(pod(gpus=2, nodeSelector=small))))


def test_every_breakage_is_in_one_row_of_urgency_and_many_pairs_are_possible() -> None:
    first = {one.first for one in (*ALL, *test_vendors.BREAKS)}
    assert first == {rule for row in ROWS for rule in row}
    assert len(first) == sum(map(len, ROWS))
    pairs = drawn(ALL, 200)
    assert len({(str(one.first), str(one.second)) for one in pairs}) == 200
    assert pairs == drawn(ALL, 200)
    taking_part = {one.what for pair in pairs for one in pair}
    assert len(taking_part) > 100


def test_what_is_seen_on_a_node_alone_is_paired_with_the_like() -> None:
    assert all(pair.second.host for pair in drawn(hosts.BREAKS, 5))


def test_a_pair_is_wrong_when_one_is_not_told_or_the_less_urgent_is_first() -> None:
    hurt, waits = broken("HW-01", names="gpu-node-1"), broken("SCH-08")
    pair = Pair(hurt, waits)
    node = Finding(id="HW-01", subject=Subject("Node", "gpu-node-1"), cause="lost")
    work = Finding(id="SCH-08", subject=Subject("Pod", "broken", "team-a"), cause="waits")
    assert wrong(Report(findings=(node, work)), pair) == ""
    assert "HW-01" in wrong(Report(findings=(work, node)), pair)
    assert "is not told" in wrong(Report(findings=(node,)), pair)
    assert place(Report(findings=(Finding(subject=Subject("Cluster"), cause="c", consequences=(work,)),)), waits) == (
        0,
        1,
    )
