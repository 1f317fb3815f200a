"""Semantic versions in their order, and what is none."""

from __future__ import annotations

import itertools

import pytest

from kgpu.fit.devices.semver import completed, parse_version

# The order of semver.org's own example, and numbers around it.
IN_ORDER = (
    "0.9.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
    "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0",
)  # fmt: skip


def test_versions_have_an_order() -> None:
    assert all(parse_version(one) < parse_version(other) for one, other in itertools.pairwise(IN_ORDER))
    assert parse_version("1.0.0+a") == parse_version("1.0.0+b")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3.4", "1.2.x", " 1.2.3"]
)
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version"):
        parse_version(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("v1", "1.0.0"), ("1.02", "1.2.0"), ("01.2.3-rc.1", "1.2.3-rc.1"), ("1.2.3.4", "1.2.3.4"), ("x", "x")],
)
def test_parts_that_are_missing_are_added(text: str, whole: str) -> None:
    assert completed(text) == whole
