"""MIG profile names: the grammar, the two spellings, and go-nvlib's memory rounding over whole ranges."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_profile import (
    COMPUTE_INSTANCE_SLICES,
    GPU_INSTANCE_KINDS,
    MigProfile,
    memory_gb,
    parse_mig_profile,
    parse_mig_resource,
    profile_name,
    profile_name_of_kinds,
)

MIB, GIB = 1 << 20, 1 << 30

attribute = st.from_regex(r"[A-Za-z]([A-Za-z0-9.]{0,6}[A-Za-z0-9])?", fullmatch=True)
attribute_sets = st.sets(attribute, max_size=3).map(lambda found: tuple(sorted(found)))


@st.composite
def profiles(draw: st.DrawFn) -> MigProfile:
    g = draw(st.integers(1, 8))
    signs = draw(st.booleans())
    attributes = draw(attribute_sets)
    c = draw(st.integers(1, g))
    return MigProfile(c, g, draw(st.integers(1, 288)), attributes if signs else (), () if signs else attributes)


@given(profiles())
def test_formatting_and_parsing_are_inverse(profile: MigProfile) -> None:
    assert parse_mig_profile(str(profile)) == profile


@given(profiles())
def test_resource_form_has_only_characters_of_a_resource_name(profile: MigProfile) -> None:
    assert not set(profile.resource_form) & set("+,")
    if len(profile.attributes) < 2 and len(profile.negative_attributes) < 2:
        assert parse_mig_resource(profile.resource_name) == profile
        assert parse_mig_resource(profile.resource_form) == profile


@given(st.text(max_size=24))
def test_any_text_is_a_profile_or_a_three_part_error(text: str) -> None:
    try:
        parsed = parse_mig_profile(text)
    except ConfigError as error:
        parts = (error.what, error.expected, error.remedy)
    else:
        parts = (str(parsed),)
        assert parse_mig_profile(str(parsed)) == parsed
    assert all(parts)


@pytest.mark.parametrize(
    ("text", "expected", "resource"),
    [
        ("1g.5gb", MigProfile(1, 1, 5), "nvidia.com/mig-1g.5gb"),
        ("1c.1g.5gb", MigProfile(1, 1, 5), "nvidia.com/mig-1g.5gb"),
        ("1c.3g.20gb", MigProfile(1, 3, 20), "nvidia.com/mig-1c.3g.20gb"),
        ("1g.10gb+me", MigProfile(1, 1, 10, ("me",)), "nvidia.com/mig-1g.10gb.me"),
        ("1g.10gb+me.all", MigProfile(1, 1, 10, ("me.all",)), "nvidia.com/mig-1g.10gb.me.all"),
        ("1g.24gb+gfx", MigProfile(1, 1, 24, ("gfx",)), "nvidia.com/mig-1g.24gb.gfx"),
        ("1g.24gb-me", MigProfile(1, 1, 24, (), ("me",)), "nvidia.com/mig-1g.24gb-me"),
        ("2g.20gb+me,gfx", MigProfile(2, 2, 20, ("gfx", "me")), "nvidia.com/mig-2g.20gb.gfx.me"),
    ],
)
def test_spellings(text: str, expected: MigProfile, resource: str) -> None:
    profile = parse_mig_profile(text)
    assert profile == expected
    assert profile.resource_name == resource


@pytest.mark.parametrize(
    "text",
    [
        "", "bogus", "0g.0gb", "0c.0g.0gb", "10000g.500000gb", " 1g.5gb", "1g.5gb ", "1 g.5gb", "1g. 5gb", "1g .5gb",
        "1c . 1g . 5gb", "1c.f1g.5gb", "1r.1g.5gb", "1g.5gbk", "1g.5", "g.5gb", "1g.gb", "01g.5gb", "+1g.5gb", "1g.5gb\n",
        "2c.1g.5gb", "1g.5gb+", "1g.5gb-", "1g.5gb+,", "1g.5gb+me,", "1g.5gb+me,me", "1g.5gb+me, gfx", "1g.5gb+2me",
        "1g.5gb+.me", "1g.5gb+me.", "1g.5gb*me", "1g.5gb+me-gfx", "1g.5gb-me+gfx", "1g.5gb+m_e", "\u0661g.5gb", "1G.5GB",
    ],
)  # fmt: skip
def test_what_is_not_a_profile_says_so(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_mig_profile(text)
    assert f'"{text}"' in caught.value.what


def test_profiles_of_other_slices_memory_or_attributes_differ() -> None:
    names = ["1g.10gb", "1c.2g.10gb", "2g.10gb", "1g.20gb", "1g.10gb+me", "1g.10gb-me", "1g.10gb+gfx", "1g.10gb+me,gfx"]
    assert len({parse_mig_profile(name) for name in names}) == len(names)
    assert parse_mig_profile("1g.10gb+me,gfx") == parse_mig_profile("1g.10gb+gfx,me")


@given(st.integers(1, 8 * 300), st.sampled_from([16, 24, 40, 48, 80, 96, 141, 180, 192, 288]))
def test_memory_is_the_nearest_eighth_above(step: int, total_gib: int) -> None:
    """Rule read another way: the smallest number of eighths that holds the instance, of the total rounded up to GiB."""
    total = total_gib * GIB
    mib = min(step * 128, total // MIB)
    eighths = next(k for k in range(1, 9) if Fraction(mib * MIB, total) <= Fraction(k, 8))
    expected = math.floor(Fraction(eighths * total_gib, 8) + Fraction(1, 2))
    assert memory_gb(mib, total) == expected


@given(st.integers(1, 400 * 1024), st.integers(1, 400 * GIB))
def test_memory_agrees_with_the_formula_in_rationals(mib: int, total: int) -> None:
    fraction = Fraction(math.ceil(Fraction(mib * MIB, total) * 8), 8)
    exact = fraction * math.ceil(Fraction(total, GIB))
    assert memory_gb(mib, total) == math.floor(exact + Fraction(1, 2))


def test_memory_needs_a_total() -> None:
    with pytest.raises(ValueError, match="positive"):
        memory_gb(1, 0)


@pytest.mark.parametrize(
    ("total_mib", "slices", "mib", "name"),
    [
        (40960, 1, 4864, "1g.5gb"),  # A100 40 GB
        (40960, 3, 19968, "3g.20gb"),
        (40960, 7, 40192, "7g.40gb"),
        (81920, 1, 9728, "1g.10gb"),  # A100 80 GB
        (81920, 7, 80384, "7g.80gb"),
        (24576, 1, 5952, "1g.6gb"),  # A30
        (81559, 1, 9984, "1g.10gb"),  # H100 80 GB as drivers report it
        (80 * 1024 - 1024, 7, 79 * 1024, "7g.79gb"),  # a driver that reports a round 79 GiB
    ],
)
def test_names_of_known_cards(total_mib: int, slices: int, mib: int, name: str) -> None:
    assert profile_name(gi_slices=slices, ci_slices=slices, memory_mib=mib, total_bytes=total_mib * MIB) == name


def test_names_from_the_drivers_enumerations() -> None:
    def name(gi: int, ci: int) -> str:
        return profile_name_of_kinds(gi_kind=gi, ci_kind=ci, memory_mib=9728, total_bytes=80 * GIB)

    assert [name(7, 0), name(13, 0), name(15, 0), name(10, 7)] == [
        "1g.10gb+me", "1g.10gb-me", "1g.10gb+me.all", "1g.10gb+gfx",
    ]  # fmt: skip
    assert name(2, 0) == "1c.3g.10gb"
    assert name(4, 8) == "7g.10gb"
    assert name(17, 2) == "3g.10gb+gfx"  # the enumeration that go-nvlib does not know
    assert sorted(GPU_INSTANCE_KINDS) == list(range(18))
    assert sorted(COMPUTE_INSTANCE_SLICES) == list(range(9))
