"""Pure: which part of a GPU each of its partitions is, for its price.

A MIG instance is the larger of its share of compute slices and of memory slices. Where those of all instances are more
than the GPU (4g and 3g are 4/7 and 4/8), each is made smaller in proportion. Partitions of a GPU without a table of
geometry, as other vendors' are, are equal parts.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from kgpu.base.errors import ConfigError
from kgpu.formats.mig_geometry import Geometry, find, geometry_of
from kgpu.formats.mig_profile import parse_mig_profile


@functools.lru_cache(maxsize=1024)
def partition_parts(product: str, profiles: tuple[str, ...]) -> tuple[Fraction, ...]:
    """The part of each; together at most 1."""
    if not profiles:
        return ()
    geometry = geometry_of(product.replace("-", " "))
    known = [_part(geometry, profile) for profile in profiles] if geometry is not None else []
    if not known or None in known:
        return (Fraction(1, len(profiles)),) * len(profiles)
    parts = [part for part in known if part is not None]
    total = sum(parts, Fraction(0))
    return tuple(part / total if total > 1 else part for part in parts)


def _part(geometry: Geometry, profile: str) -> Fraction | None:
    try:
        row = find(geometry, parse_mig_profile(profile))
    except ConfigError:
        return None
    if row is None:
        return None
    return max(Fraction(row.slices, geometry.slices), Fraction(row.units, geometry.units))
