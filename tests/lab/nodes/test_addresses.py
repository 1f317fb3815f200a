"""Addresses of pods: given once at a time, and loopback addresses that no other lab has."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest

from kgpu.lab.nodes.addresses import PodAddresses, loopback


def test_an_address_is_given_again_when_it_is_free() -> None:
    addresses = PodAddresses()
    taken = [addresses.take() for _ in range(1000)]
    assert len(set(taken)) == 1000
    assert all(ipaddress.IPv4Address(one) in ipaddress.IPv4Network("10.244.0.0/14") for one in taken)
    addresses.free(taken[0])
    assert addresses.take() not in taken, "freed ones last"


def test_each_pod_has_a_loopback_address_of_its_own(tmp_path: Path) -> None:
    addresses = PodAddresses()
    found = [loopback(addresses.take(), tmp_path) for _ in range(70_000)]
    assert len(set(found)) == len(found)
    for one in (found[0], found[-1]):
        with socket.create_server((one, 0)):  # it can be listened on
            pass


def test_labs_beside_each_other_do_not_meet() -> None:
    """By far: a hundred labs with a hundred pods each."""
    found = [
        loopback(f"10.244.1.{number}", Path(f"/labs/{lab}/nodes")) for lab in range(100) for number in range(1, 101)
    ]
    assert len(set(found)) == len(found)
    assert not [one for one in found if one.startswith("127.0.") or one == "127.255.255.255"]


@pytest.mark.parametrize("address", ["", "::1", "192.168.1.1", "10.1", "localhost"])
def test_what_is_no_pods_address_stays(address: str) -> None:
    assert loopback(address, Path("/x")) == address
