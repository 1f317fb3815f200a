"""MIG geometry of real GPUs: printed profile ids, counts, placements, engines and memory; and what fits together.

Values come from `nvidia-smi mig -lgip`, `-lgipp` and `-lcip` of the real devices and from the vendor's MIG guide;
memory that no listing gives is the slice's share of the GPU's own total, which yields the published names.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.formats.mig_profile import MigProfile, parse_mig_profile

CI_REV1: Final = 7
_PLAIN: Final = (0, 1, 2, 3, 4)  # the profiles without extras, 1 to 7 slices
_CI_SLICES: Final = (1, 2, 3, 4, 7)  # by compute instance profile number
_SAME_SIZE: Final = 0.08
"""How far the size in a profile's name may be from the table's: drivers round differently (3g.39gb is 3g.40gb)."""
_SHARED: Final = ("slices", "dec", "enc", "jpeg", "ofa")
"""What the instances of a GPU share out besides places: compute slices and engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """A GPU instance profile. `units` is the size in memory slices, `mib` 0 means the slice's share of the total."""

    name: str
    enum: int
    id: int
    slices: int
    count: int
    starts: tuple[int, ...]
    units: int
    sm: int
    ce: int = 1
    dec: int = 0
    enc: int = 0
    jpeg: int = 0
    ofa: int = 0
    mib: int = 0
    graphics: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Every profile of one kind of GPU. `units` is the placement grid, `slices` the compute slices.

    `needs_reset`: a mode change needs a GPU reset (Ampere). `rev1`: double-memory slices have two CI profiles of one
    name, the plain one and the whole-instance one (Hopper and later).
    """

    number: int
    units: int
    slices: int
    max_devices: int
    rows: tuple[InstanceProfile, ...]
    needs_reset: bool = False
    rev1: bool = False

    @property
    def whole(self) -> InstanceProfile:
        """The profile that is the whole GPU."""
        return next(row for row in self.rows if row.slices == self.slices and not row.graphics)

    @property
    def smallest(self) -> InstanceProfile:
        """The profile of one compute slice without extras."""
        return next(row for row in self.rows if row.enum == 0)


# Kinds of a 7-slice GPU: suffix, enum, printed id, compute slices, count, starts, memory slices.
_SEVEN: Final = (
    ("1g", "", 0, 19, 1, 7, (0, 1, 2, 3, 4, 5, 6), 1),
    ("1g", "+me", 7, 20, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    ("1g", "", 9, 15, 1, 4, (0, 2, 4, 6), 2),
    ("2g", "", 1, 14, 2, 3, (0, 2, 4), 2),
    ("3g", "", 2, 9, 3, 2, (0, 4), 4),
    ("4g", "", 3, 5, 4, 1, (0,), 4),
    ("7g", "", 4, 0, 7, 1, (0,), 8),
)

_Counts = tuple[int, int, int, int, int, int, int]
_ZERO: Final[_Counts] = (0, 0, 0, 0, 0, 0, 0)
# Per kind in the order of _SEVEN.
_A100_SM: Final = (14, 14, 14, 28, 42, 56, 98)
_A100_CE: Final = (1, 1, 1, 2, 3, 4, 7)
_A100_DEC: Final = (0, 1, 1, 1, 2, 2, 5)
_A100_JPEG: Final = (0, 1, 0, 0, 0, 0, 1)
_H100_SM: Final = (16, 16, 26, 32, 60, 64, 132)
_H100_CE: Final = (1, 1, 1, 2, 3, 4, 8)
_H100_DEC: Final = (1, 1, 1, 2, 3, 4, 7)
_B200_SM: Final = (18, 18, 30, 36, 70, 72, 148)
_B200_CE: Final = (2, 2, 2, 3, 6, 8, 16)
_ONE_OFA: Final = (0, 1, 0, 0, 0, 0, 1)


def _seven(
    number: int,
    gb: tuple[int, int, int, int, int],
    mib: _Counts = _ZERO,
    *,
    sm: _Counts = _H100_SM,
    ce: _Counts = _H100_CE,
    dec: _Counts = _H100_DEC,
    jpeg: _Counts = _H100_DEC,
    ampere: bool = False,
) -> Geometry:
    """A 7-slice family; `gb` names the sizes of 1g, 1g double memory and 2g, 3g and 4g, and 7g."""
    single, double, half, full = gb[0], gb[1], gb[3], gb[4]
    sizes = (single, single, double, gb[2], half, half, full)
    rows = tuple(
        InstanceProfile(
            name=f"{g}.{sizes[i]}gb{suffix}",
            enum=enum,
            id=printed,
            slices=slices,
            count=count,
            starts=starts,
            units=units,
            sm=sm[i],
            ce=ce[i],
            dec=dec[i],
            jpeg=jpeg[i],
            ofa=_ONE_OFA[i],
            mib=mib[i],
        )
        for i, (g, suffix, enum, printed, slices, count, starts, units) in enumerate(_SEVEN)
    )
    return Geometry(number=number, units=8, slices=7, max_devices=7, rows=rows, needs_reset=ampere, rev1=not ampere)


def _a100(number: int, gb: tuple[int, int, int, int, int], mib: _Counts) -> Geometry:
    return _seven(number, gb, mib, sm=_A100_SM, ce=_A100_CE, dec=_A100_DEC, jpeg=_A100_JPEG, ampere=True)


def _blackwell(number: int, gb: tuple[int, int, int, int, int]) -> Geometry:
    return _seven(number, gb, sm=_B200_SM, ce=_B200_CE)


_QUARTERS: Final = (0, 1, 2, 3)
_A30: Final = (
    InstanceProfile(name="1g.6gb", enum=0, id=14, slices=1, count=4, starts=_QUARTERS, units=1, sm=14, mib=5836),
    InstanceProfile(
        name="1g.6gb+me",
        enum=7,
        id=21,
        slices=1,
        count=1,
        starts=_QUARTERS,
        units=1,
        sm=14,
        dec=1,
        jpeg=1,
        ofa=1,
        mib=5836,
    ),
    InstanceProfile(
        name="2g.12gb", enum=1, id=5, slices=2, count=2, starts=(0, 2), units=2, sm=28, ce=2, dec=2, mib=11672
    ),
    InstanceProfile(
        name="2g.12gb+me",
        enum=8,
        id=6,
        slices=2,
        count=1,
        starts=(0, 2),
        units=2,
        sm=28,
        ce=2,
        dec=2,
        jpeg=1,
        ofa=1,
        mib=11672,
    ),
    InstanceProfile(
        name="4g.24gb",
        enum=3,
        id=0,
        slices=4,
        count=1,
        starts=(0,),
        units=4,
        sm=56,
        ce=4,
        dec=4,
        jpeg=1,
        ofa=1,
        mib=23344,
    ),
)

# RTX PRO 6000: name, enum, id, slices, count, media engines, OFA, graphics; starts and SMs follow from the slices.
_PRO: Final = (
    ("1g.24gb", 0, 14, 1, 4, 1, 0, False),
    ("1g.24gb+me", 7, 21, 1, 1, 1, 1, False),
    ("1g.24gb+gfx", 10, 47, 1, 4, 1, 0, True),
    ("1g.24gb-me", 13, 67, 1, 4, 0, 0, False),
    ("1g.24gb+me.all", 15, 65, 1, 1, 4, 1, False),
    ("2g.48gb", 1, 5, 2, 2, 2, 0, False),
    ("2g.48gb+gfx", 11, 35, 2, 2, 2, 0, True),
    ("2g.48gb-me", 14, 66, 2, 2, 0, 0, False),
    ("2g.48gb+me.all", 16, 64, 2, 1, 4, 1, False),
    ("4g.96gb", 3, 0, 4, 1, 4, 1, False),
    ("4g.96gb+gfx", 12, 32, 4, 1, 4, 1, True),
)
_PRO_SHAPE: Final = {  # slices: (starts, units, SMs, copy engines, MiB)
    1: ((0, 3, 6, 9), 3, 46, 1, 24186),
    2: ((0, 6), 6, 94, 2, 48516),
    4: ((0,), 12, 188, 4, 97400),
}


def _pro() -> Iterator[InstanceProfile]:
    for name, enum, printed, slices, count, media, ofa, graphics in _PRO:
        starts, units, sm, ce, mib = _PRO_SHAPE[slices]
        yield InstanceProfile(
            name=name,
            enum=enum,
            id=printed,
            slices=slices,
            count=count,
            starts=starts,
            units=units,
            sm=sm,
            ce=ce,
            dec=media,
            enc=media,
            jpeg=media,
            ofa=ofa,
            mib=mib,
            graphics=graphics,
        )


GEOMETRIES: Final[dict[str, Geometry]] = {
    "a100-40gb": _a100(1, (5, 10, 10, 20, 40), (4864, 4864, 9856, 9856, 19968, 19968, 40192)),
    "a100-80gb": _a100(2, (10, 20, 20, 40, 80), (9856, 9856, 19968, 19968, 40192, 40192, 80384)),
    "a30": Geometry(number=3, units=4, slices=4, max_devices=4, rows=_A30, needs_reset=True),
    "h100-80gb": _seven(4, (10, 20, 20, 40, 80), (9984, 9984, 20096, 20096, 40448, 40448, 81152)),
    "h100-94gb": _seven(5, (12, 24, 24, 47, 94), (0, 0, 0, 0, 47488, 47488, 95360)),
    "h100-96gb": _seven(6, (12, 24, 24, 48, 96)),
    "h200": _seven(7, (18, 35, 35, 71, 141)),
    "gh200-96gb": _seven(8, (12, 24, 24, 48, 96)),
    "gh200-144gb": _seven(9, (18, 36, 36, 72, 144)),
    "b200": _blackwell(10, (23, 45, 45, 90, 180)),
    "gb200": _blackwell(11, (23, 47, 47, 93, 186)),
    "b300": _blackwell(12, (34, 67, 67, 135, 269)),
    "gb300": _blackwell(13, (35, 70, 70, 139, 278)),
    "rtx-pro-6000": Geometry(number=14, units=12, slices=4, max_devices=4, rows=tuple(_pro())),
}


def memory_mib(row: InstanceProfile, geometry: Geometry, total_mib: int) -> int:
    """The memory of an instance on a GPU with so much; where no listing gives it, its share in whole blocks."""
    return row.mib or total_mib * row.units // geometry.units * 63 // 64 // 64 * 64


def ci_count(slices: int, total: int) -> int:
    """How many compute instances of `slices` fit a GPU instance of `total` compute slices (placement rule of -lcip)."""
    step = 4 if slices == 3 else slices
    return len(range(0, total - slices + 1, step))


def ci_rows(row: InstanceProfile, family: Geometry) -> Iterator[tuple[int, int, int, str]]:
    """The compute instance profiles of a GPU instance profile: (enum and id, slices, multiprocessors, name).

    Double-memory slices of Hopper and later have two profiles of one name: the plain slice's size, and the whole.
    """
    plain = {profile.slices: profile.sm for profile in family.rows if profile.enum in _PLAIN}
    for enum, slices in enumerate(_CI_SLICES):
        if slices > row.slices or slices not in plain or (slices == 3 and row.slices == 4):
            continue
        whole = slices == row.slices
        doubled = row.enum == 9 and family.rev1
        sm = plain[1] if doubled else row.sm if whole else plain[slices]
        yield enum, slices, sm, row.name if whole else f"{slices}c.{row.name}"
        if doubled:
            yield CI_REV1, slices, row.sm, row.name


def whole_ci(row: InstanceProfile, family: Geometry) -> int:
    """The number of the compute instance that takes a whole GPU instance, which is the driver's default.

    Of two profiles of one name the later one is it: slices of double memory have more multiprocessors than a plain one.
    """
    return [number for number, slices, _, _ in ci_rows(row, family) if slices == row.slices][-1]


# By what the product's name has, the first that matches; nothing for a GPU without MIG, or of which no table is known.
_PRODUCTS: Final = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"RTX[ -]PRO[ -]6000", "rtx-pro-6000"),
        (r"GB300", "gb300"),
        (r"B300", "b300"),
        (r"GB200", "gb200"),
        (r"B200", "b200"),
        (r"GH200.*144", "gh200-144gb"),
        (r"GH200", "gh200-96gb"),  # GH200 480GB is named after the memory of its CPU
        (r"H200|H20-3e|H20-141", "h200"),
        (r"H20(?![0-9])", "h100-96gb"),
        (r"H[18]00[ -]NVL|H[18]00.*94GB", "h100-94gb"),
        (r"H100.*96GB", "h100-96gb"),
        (r"H100.*80GB|H100[ -]PCI[eE]|H800", "h100-80gb"),
        (r"A[18]00.*40GB", "a100-40gb"),
        (r"A100.*80GB|A800", "a100-80gb"),
        (r"A30(?![0-9])", "a30"),
    )
)


def geometry_of(product: str) -> Geometry | None:
    """The geometry of a GPU by its name, as NVML has it or as in the label ``nvidia.com/gpu.product``; None for a name
    that no table is known for.
    """
    return next((GEOMETRIES[name] for pattern, name in _PRODUCTS if pattern.search(product)), None)


def find(geometry: Geometry, profile: MigProfile) -> InstanceProfile | None:
    """The profile of that name; of a compute instance, that of the GPU instance around it. None where the GPU has no
    such profile.
    """
    return next((row for row in geometry.rows if _is_called(_parsed(row.name), profile)), None)


_parsed: Final = functools.cache(parse_mig_profile)


def _is_called(known: MigProfile, profile: MigProfile) -> bool:
    same_size = abs(profile.gb / known.gb - 1) < _SAME_SIZE
    extras = (profile.attributes, profile.negative_attributes)
    return same_size and profile.g == known.g and extras == (known.attributes, known.negative_attributes)


def placements(
    geometry: Geometry, profiles: Sequence[InstanceProfile], beside: Sequence[tuple[InstanceProfile, int]] = ()
) -> tuple[int, ...] | None:
    """Where GPU instances of these profiles stand together on one GPU: a start for each, in their order. None where
    they do not fit. ``beside`` are instances that are there already, with their starts, and stay.

    The largest is placed first and the highest start tried first, so that small ones seldom make a second try needed.
    """
    if not _share(geometry, [*profiles, *(row for row, _ in beside)]):
        return None
    taken = 0
    for row, start in beside:
        taken |= places(row, start)
    order = sorted(range(len(profiles)), key=lambda at: -profiles[at].units)
    starts = _placed([profiles[at] for at in order], taken)
    if starts is None:
        return None
    return tuple(start for _, start in sorted(zip(order, starts, strict=True)))


def places(row: InstanceProfile, start: int) -> int:
    """The memory slices that an instance takes, as bits."""
    return ((1 << row.units) - 1) << start


def fits(geometry: Geometry, profiles: Sequence[InstanceProfile]) -> bool:
    """Whether GPU instances of these profiles can be on one GPU together."""
    return placements(geometry, profiles) is not None


def _share(geometry: Geometry, profiles: Sequence[InstanceProfile]) -> bool:
    """Whether there is enough for all of them, wherever they stand."""
    if len(profiles) > geometry.max_devices or sum(row.units for row in profiles) > geometry.units:
        return False
    if any(count > row.count for row, count in Counter(profiles).items()):
        return False
    whole = geometry.whole
    return all(sum(getattr(row, share) for row in profiles) <= getattr(whole, share) for share in _SHARED)


def _placed(profiles: Sequence[InstanceProfile], taken: int) -> tuple[int, ...] | None:
    """Starts for the profiles besides the ``taken`` units, which are bits."""
    if not profiles:
        return ()
    first, rest = profiles[0], profiles[1:]
    for start in reversed(first.starts):
        units = places(first, start)
        if not units & taken:
            after = _placed(rest, taken | units)
            if after is not None:
                return (start, *after)
    return None
