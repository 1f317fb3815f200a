"""The 81 configs that come with mig-parted v0.15 and NVIDIA's operator, for nodes whose profiles nobody can read.

By name: ``all-disabled``, ``all-enabled``, ``all-balanced``, and ``all-<profile>`` with as many slices as a GPU takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kgpu.formats.mig_config import ALL, VERSION
from kgpu.formats.mig_profile import parse_mig_profile
from kgpu.formats.pci_ids import packed_text

_NVIDIA: Final = 0x10DE
_A100_40: Final = (0x20B0, 0x20B1, 0x20F1, 0x20F6)
_A100_H100_80: Final = (0x20B2, 0x20B5, 0x20F3, 0x20F5, 0x2330, 0x2331, 0x2322, 0x2324)
_GB300: Final = (0x31C2,)

# Slices per GPU by the profile, family by family; a profile of two families is listed with the first.
_COUNTS: Final[Mapping[str, int]] = {
    # A100 and A800 of 40 GB
    "1g.5gb": 7, "1g.5gb+me": 1, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1,
    # A100 and H100 of 80 GB
    "1g.10gb+me": 1, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1,
    # A30
    "1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1,
    # H100 of 94 and 96 GB, GH200
    "1g.12gb": 7, "1g.12gb+me": 1, "1g.24gb": 4, "1g.24gb+me": 1, "2g.24gb": 3, "3g.47gb": 2, "4g.47gb": 1,
    "7g.94gb": 1, "3g.48gb": 2, "4g.48gb": 1, "7g.96gb": 1,
    # H200
    "1g.18gb": 7, "1g.18gb+me": 1, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1,
    # GH200 of 144 GB
    "1g.36gb": 4, "2g.36gb": 3, "3g.72gb": 2, "4g.72gb": 1, "7g.144gb": 1,
    # B200
    "1g.23gb": 7, "1g.23gb+me": 1, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1, "7g.180gb": 1,
    # GB200, whose sizes drivers round in two ways
    "1g.47gb": 4, "2g.47gb": 3, "3g.93gb": 2, "3g.95gb": 2, "4g.93gb": 1, "4g.95gb": 1, "7g.186gb": 1, "7g.189gb": 1,
    # B300
    "1g.34gb": 7, "1g.34gb+me": 1, "1g.67gb": 4, "2g.67gb": 3, "3g.135gb": 2, "4g.135gb": 1, "7g.269gb": 1,
    # GB300
    "1g.35gb+me": 1, "1g.70gb": 4, "2g.70gb": 3, "3g.139gb": 2, "4g.139gb": 1, "7g.278gb": 1,
    # RTX PRO 6000
    "1g.24gb+gfx": 4, "1g.24gb+me.all": 1, "1g.24gb-me": 4, "2g.48gb": 2, "2g.48gb+gfx": 2, "2g.48gb+me.all": 1,
    "2g.48gb-me": 2, "4g.96gb": 1, "4g.96gb+gfx": 1,
}  # fmt: skip

# Profiles of which GPUs take different numbers.
_BY_MODEL: Final[Mapping[str, tuple[tuple[tuple[int, ...], int], ...]]] = {
    "1g.10gb": ((_A100_H100_80, 7), (_A100_40, 4)),
    "1g.35gb": (((0x2335,), 4), (_GB300, 7)),
}

_BALANCED: Final[tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]] = (
    (_A100_40, ("1g.5gb", "2g.10gb", "3g.20gb")),
    (_A100_H100_80, ("1g.10gb", "2g.20gb", "3g.40gb")),
    ((0x20B7,), ("1g.6gb", "2g.12gb")),  # A30
    ((0x2321, 0x233A), ("1g.12gb", "2g.24gb", "3g.47gb")),  # H100 NVL, H800 NVL
    ((0x2342, 0x233D, 0x20B6, 0x2329), ("1g.12gb", "2g.24gb", "3g.48gb")),  # GH200 96 GB, H100 96 GB, PG506, H20
    ((0x2335, 0x233B), ("1g.18gb", "2g.35gb", "3g.71gb")),  # H200, H200 NVL
    ((0x2348,), ("1g.18gb", "2g.36gb", "3g.72gb")),  # GH200 144 GB
    ((0x2901,), ("1g.23gb", "2g.45gb", "3g.90gb")),  # B200
    ((0x2941,), ("1g.23gb", "2g.47gb", "3g.93gb")),  # GB200
    ((0x3182,), ("1g.34gb", "2g.67gb", "3g.135gb")),  # B300
    (_GB300, ("1g.35gb", "2g.70gb", "3g.139gb")),
    ((0x2BB5,), ("1g.24gb", "2g.48gb")),  # RTX PRO 6000
)


def default_configs() -> dict[str, Any]:
    """The file's content, as plain values."""
    named = {
        "all-disabled": [_entry(enabled=False)],
        "all-enabled": [_entry({})],
        "all-balanced": [
            _entry({name: 2 if name.startswith("1g.") else 1 for name in profiles}, ids) for ids, profiles in _BALANCED
        ],
        **{config_name(name): [_entry({name: count})] for name, count in _COUNTS.items()},
        **{config_name(name): [_entry({name: count}, ids) for ids, count in rows] for name, rows in _BY_MODEL.items()},
    }
    return {"version": VERSION, "mig-configs": named}


def config_name(profile: str) -> str:
    """The config that cuts GPUs into slices of one profile only, such as ``all-1g.10gb.me``. Raises ConfigError."""
    return f"all-{parse_mig_profile(profile).resource_form}"


def _entry(
    profiles: Mapping[str, int] | None = None, models: tuple[int, ...] = (), *, enabled: bool = True
) -> dict[str, Any]:
    ids = [packed_text(model << 16 | _NVIDIA) for model in models]
    only = {"device-filter": ids if len(ids) > 1 else ids[0]} if ids else {}
    return only | {"devices": ALL, "mig-enabled": enabled} | ({"mig-devices": dict(profiles or {})} if enabled else {})
