"""The replaced operator's releases: which are supported, and where that is said."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.formats.releases import RELEASES, Support, release_of, told
from kgpu.operator.plan import plan
from tests.operator.world import SETTINGS, node_object, world


@pytest.mark.parametrize(
    ("version", "support"),
    [
        ("v24.9.0", Support.ENDED),
        ("25.3.4", Support.ENDED),
        ("v25.10.1", Support.DEPRECATED),
        ("v26.3.0", Support.FULL),
        ("v26.3.2", Support.FULL),
        ("v26.7.0", Support.FULL),
    ],
)
def test_support(version: str, support: Support) -> None:
    row = release_of(version)
    assert row is not None
    assert row.support is support


@pytest.mark.parametrize("version", ["", "v99.1.0", "latest", "v" * 5000])
def test_nothing_is_said_of_a_release_that_is_not_listed(version: str) -> None:
    assert told(version) == ""


def test_what_26_3_brought() -> None:
    row = release_of("v26.3.0")
    assert row is not None
    assert dict(row.components) == {"toolkit": "v1.19.0", "devicePlugin": "v0.19.0"}


def test_rows_are_in_order() -> None:
    assert [row.line for row in RELEASES] == sorted(row.line for row in RELEASES)


def test_the_operator_that_is_in_the_way_is_named_with_its_release() -> None:
    observed = dataclasses.replace(
        world(node_object()), foreign_operator="gpu-operator/gpu-operator", foreign_version="v24.9.0"
    )
    status = next(iter(plan(observed, SETTINGS).policy_status.values()))
    message = next(one["message"] for one in status["conditions"] if one["type"] == "Error")
    assert "Deployment gpu-operator/gpu-operator, release v24.9.0, which is past the end of its support)" in message
