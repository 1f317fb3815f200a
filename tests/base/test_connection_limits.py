"""Who has to go when more connections come than there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.connection_limits import (
    MOST,
    MOST_OF_PEER,
    MOST_OWN,
    PeerConnection,
    connection_from,
    make_room,
    node_addresses,
)

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t01F40A0A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t00F40A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def others(count: int, peer: str = "") -> list[PeerConnection]:
    return [PeerConnection(peer or f"10.0.0.{number}", own=False) for number in range(count)]


def test_there_is_room() -> None:
    assert make_room([], PeerConnection("10.0.0.1", own=False)) == (True, None)
    assert make_room(others(MOST - 1), PeerConnection("10.0.1.1", own=False)) == (True, None)


def test_the_oldest_that_says_nothing_goes() -> None:
    rows = others(MOST)
    rows[0].asked = True
    assert make_room(rows, PeerConnection("10.0.1.1", own=False)) == (True, rows[1])


def test_one_that_waits_for_its_answer_stays_and_one_that_has_it_goes() -> None:
    rows = others(MOST)
    for one in rows:
        one.asked = True
    assert make_room(rows, PeerConnection("10.0.1.1", own=False)) == (False, None)
    rows[7].answered = True
    assert make_room(rows, PeerConnection("10.0.1.1", own=False)) == (True, rows[7])


def test_one_that_does_not_take_its_answer_goes_before_anybody_is_refused() -> None:
    rows = others(MOST)
    for one in rows:
        one.asked = True
    rows[5].sending = rows[9].sending = True
    assert make_room(rows, PeerConnection("10.0.1.1", own=False)) == (True, rows[5])
    rows[9].answered = True
    assert make_room(rows, PeerConnection("10.0.1.1", own=False)) == (True, rows[9])


def test_one_peer_makes_room_for_itself_alone() -> None:
    rows = [*others(3), *others(MOST_OF_PEER, "10.9.9.9")]
    assert make_room(rows, PeerConnection("10.9.9.9", own=False)) == (True, rows[3])


def test_the_node_has_room_of_its_own() -> None:
    rows = others(MOST)
    for one in rows:
        one.asked = True
    kubelet = PeerConnection("10.0.0.1", own=True)
    assert make_room(rows, kubelet) == (True, None)
    own = [PeerConnection("127.0.0.1", own=True) for _ in range(MOST_OWN)]
    assert make_room([*rows, *own], kubelet) == (True, own[0])


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans(), st.booleans()), max_size=120))
def test_whatever_comes_the_number_is_bounded_and_nobody_who_waits_for_an_answer_goes(rows) -> None:
    open_now: list[PeerConnection] = []
    for peer, own, asked, answered in rows:
        new = PeerConnection(f"10.0.0.{peer}", own, asked, asked and answered)
        stays, leaves = make_room(open_now, new)
        assert leaves is None or (stays and (not leaves.asked or leaves.answered))
        open_now = [one for one in open_now if one is not leaves] + [new] * stays
        mine = [one for one in open_now if not one.own]
        assert len(mine) <= MOST
        assert len(open_now) - len(mine) <= MOST_OWN
        assert all(sum(one.peer == other.peer for one in mine) <= MOST_OF_PEER for other in mine)


@pytest.mark.parametrize(
    ("peer", "here", "own"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::", True),
        ("10.244.0.5", "10.244.0.5", True),  # the pod itself, by its own address
        ("10.244.0.1", "10.244.0.5", True),  # the node, through its bridge
        ("192.0.2.7", "10.244.0.5", True),
        ("::ffff:192.0.2.7", "10.244.0.5", True),
        ("10.244.0.6", "10.244.0.5", False),
        ("fe80::1%eth0", "::1", False),
        ("", "", False),
    ],
)
def test_who_is_of_this_node(peer: str, here: str, own: bool) -> None:
    assert connection_from(peer, here, frozenset({"192.0.2.7", "10.244.0.1"})).own is own


def test_a_network_of_ipv6_is_one_peer() -> None:
    one, other = (connection_from(f"2001:db8::{number}", "::1", frozenset()) for number in (1, 2))
    assert one.peer == other.peer != connection_from("2001:db8:0:1::1", "::1", frozenset()).peer


def test_the_node_s_addresses_come_from_the_pod_s_environment_and_routes() -> None:
    assert node_addresses("192.0.2.7, 2001:db8::1,nonsense", ROUTES) == {"192.0.2.7", "2001:db8::1", "10.10.244.1"}
    assert node_addresses("", "") == frozenset()
    assert node_addresses("", "torn\neth0\t00000000\n") == frozenset()
    assert isinstance(node_addresses(), frozenset)


def test_only_loopback_is_local() -> None:
    assert [connection_from(peer, "10.0.0.9", frozenset()).local for peer in ("127.0.0.1", "::1", "", "10.0.0.1", "nonsense")] == [
        True, True, True, False, False
    ]  # fmt: skip
