"""Mode ``imex``: channels for memory shared between the nodes of an NVLink domain; one device per channel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.errors import ConfigError, HostError
from kgpu.formats.cdi import CdiDevice
from kgpu.toolkit.config import ALL
from kgpu.toolkit.model import ModeFinding, ModeInput
from kgpu.toolkit.modes.base import Mode, gids, matching, void_only

FOLDER: Final = "/dev/nvidia-caps-imex-channels"
MOST: Final = (1 << 20) - 1
"""The largest channel number that the driver knows (NVreg_ImexChannelCount's limit)."""
_CHANNEL: Final = re.compile(r"(?:channel)?([0-9]{1,7})", re.ASCII)


def find(look: ModeInput) -> ModeFinding:
    """Channels by number, ``channelN`` or ``all``; one that is not there is a gap."""
    channels = sorted(int(path.rpartition("channel")[2]) for path in _all(look))
    wanted = list(dict.fromkeys(_wanted(look, channels)))
    missing = [number for number in wanted if number not in channels]
    offered = [number for number in wanted if number in channels]
    if not offered:
        absent = "no channel is" if not missing else f"channel {', '.join(map(str, missing))} is not"
        raise HostError(
            f"mode imex found nothing to offer: {absent} under {look.root.dev.local(FOLDER)}",
            f"{FOLDER}/channel0 or others",
            "create channels (module parameter NVreg_ImexChannelCount, or `nvidia-modprobe -c`), or correct --dev-root",
        )
    devices = []
    for number in offered:
        nodes = (look.root.device_node(f"{FOLDER}/channel{number}"),)
        devices.append(CdiDevice(names=(str(number),), nodes=nodes, gids=gids(look, nodes)))
    gaps = tuple(f"channel {number} is left out: {FOLDER}/channel{number} not there" for number in missing)
    return ModeFinding(devices=tuple(devices), common=void_only(), gaps=gaps)


def _all(look: ModeInput) -> Iterator[str]:
    return (
        path for path in matching(look.root, (f"{FOLDER}/channel*",)) if _CHANNEL.fullmatch(path.rpartition("/")[2])
    )


def _wanted(look: ModeInput, channels: list[int]) -> Iterator[int]:
    for word in look.config.device_ids:
        match = _CHANNEL.fullmatch(word)
        if word in {ALL, f"channel{ALL}"}:
            yield from channels
        elif match and int(match[1]) <= MOST:
            yield int(match[1])
        else:
            raise ConfigError(
                f'"{word}" is not an IMEX channel',
                f"a number from 0 to {MOST}, channelN, or {ALL}",
                "correct --device-id",
            )


MODE = Mode(name="imex", help="IMEX channels", device_class="imex-channel", find=find)
