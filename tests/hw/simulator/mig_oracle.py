"""What a GPU's MIG placement rules allow, written down a second time in plain Python, for tests to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgpu.formats.mig_geometry import GEOMETRIES, InstanceProfile


@dataclass
class Oracle:
    """The GPU instances of one GPU: (start, units) by profile row."""

    family: str
    made: dict[int, tuple[InstanceProfile, int]] = field(default_factory=dict)  # instance id -> (profile, start)

    @property
    def rows(self) -> dict[int, InstanceProfile]:
        return {row.id: row for row in GEOMETRIES[self.family].rows}

    @property
    def taken(self) -> set[int]:
        return {cell for row, start in self.made.values() for cell in range(start, start + row.units)}

    def instance_id(self, row: InstanceProfile, start: int) -> int:
        return GEOMETRIES[self.family].units // row.units - 1 + start // row.units

    def _budget(self, row: InstanceProfile) -> int:
        """How many more the count and the engines of the whole GPU allow."""
        whole = next(
            one for one in self.rows.values() if one.slices == GEOMETRIES[self.family].slices and not one.graphics
        )
        more = row.count - sum(1 for one, _ in self.made.values() if one.id == row.id)
        for engine in ("slices", "dec", "enc", "jpeg", "ofa"):
            need = getattr(row, engine)
            if need:
                used = sum(getattr(one, engine) for one, _ in self.made.values())
                more = min(more, (getattr(whole, engine) - used) // need)
        return max(0, more)

    def free_starts(self, row: InstanceProfile) -> list[int]:
        return [start for start in row.starts if not self.taken & set(range(start, start + row.units))]

    def remaining(self, profile: int) -> int:
        row, taken, fit = self.rows[profile], self.taken, 0
        for start in row.starts:
            cells = set(range(start, start + row.units))
            if not cells & taken:
                taken |= cells
                fit += 1
        return min(fit, self._budget(row))

    def allowed(self, profile: int, start: int | None) -> bool:
        row = self.rows[profile]
        starts = self.free_starts(row)
        return self._budget(row) > 0 and (bool(starts) if start is None else start in starts)
