"""The queue: order, growing pauses, and news that wakes only whom it may help."""

from __future__ import annotations

from kgpu.lab.embedded.scheduler.queue import GIVEN_UP, ClusterEvent, Queue


def popped(queue: Queue, now: float) -> str:
    entry = queue.pop(now)
    return entry.uid if entry else ""


def test_important_pods_come_first_and_then_the_older():
    queue = Queue()
    for uid, priority, since in (("young", 0, 2.0), ("old", 0, 1.0), ("high", 5, 3.0)):
        queue.add(uid, priority, since)
    assert [popped(queue, 4.0) for _ in range(4)] == ["high", "old", "young", ""]


def test_pauses_double_up_to_ten_seconds():
    queue, now, pauses = Queue(), 0.0, []
    queue.add("p", 0, now)
    for _ in range(6):
        assert popped(queue, now) == "p"
        queue.refused("p", {"NodeResourcesFit"}, now)
        queue.notify(ClusterEvent.POD_GONE, now)
        pause = queue.next_time(now)
        assert pause is not None
        pauses.append(pause)
        assert popped(queue, now + pause - 0.001) == ""
        now += pause
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_news_wakes_whom_it_concerns_and_nobody_else():
    queue = Queue()
    for uid, filter_name in (("taint", "TaintToleration"), ("gpu", "NodeResourcesFit")):
        queue.add(uid, 0, 0.0)
        assert popped(queue, 0.0) == uid
        queue.refused(uid, {filter_name}, 0.0)
    queue.notify(ClusterEvent.POD_GONE, 20.0)
    assert [popped(queue, 20.0), popped(queue, 20.0)] == ["gpu", ""]


def test_news_that_comes_while_a_pod_is_tried_is_not_lost():
    queue = Queue()
    queue.add("p", 0, 0.0)
    assert popped(queue, 0.0) == "p"
    queue.notify(ClusterEvent.POD_GONE, 0.0)
    queue.refused("p", {"NodeResourcesFit"}, 0.0)
    assert popped(queue, 1.0) == "p"


def test_everybody_is_tried_again_in_the_end():
    queue = Queue()
    queue.add("p", 0, 0.0)
    assert popped(queue, 0.0) == "p"
    queue.refused("p", {"NodeAffinity"}, 0.0)
    assert queue.next_time(0.0) == GIVEN_UP
    assert [popped(queue, GIVEN_UP - 1), popped(queue, GIVEN_UP)] == ["", "p"]


def test_a_pod_that_is_gone_is_not_tried():
    queue = Queue()
    queue.add("p", 0, 0.0)
    queue.remove("p")
    assert popped(queue, 0.0) == ""
    assert len(queue) == 0


def test_news_for_some_pods_wakes_no_others():
    queue = Queue()
    for uid in ("a", "b"):
        queue.add(uid, 0, 0)
        queue.refused(popped(queue, 0), ["DynamicResources"], 0)
    queue.notify(ClusterEvent.CLAIM, 60, {"b"})
    assert [popped(queue, 60), popped(queue, 60)] == ["b", ""]
    queue.notify(ClusterEvent.CLAIM, 60, ())
    assert popped(queue, 60) == ""
    queue.notify(ClusterEvent.CLAIM, 60)
    assert popped(queue, 60) == "a"
