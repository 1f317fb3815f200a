"""The socket that systemd has opened for this process (socket activation)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

from kgpu.base.errors import ConfigError

FIRST: Final = 3  # SD_LISTEN_FDS_START


def listening_socket(env: Mapping[str, str] | None = None) -> socket.socket:
    """The one socket that was handed over. Raises ConfigError when there is none, or are several."""
    env = os.environ if env is None else env
    mine = env.get("LISTEN_PID", "") == str(os.getpid())
    count = env.get("LISTEN_FDS", "") if mine else ""
    if count != "1":
        raise ConfigError(
            f"--web-systemd-socket: systemd has handed over {count if count.isdecimal() else 'no'} sockets",
            "one listening socket in LISTEN_FDS, for this process by LISTEN_PID",
            "start it by a unit with a .socket of one ListenStream, or leave the flag out",
        )
    try:
        listener = socket.socket(fileno=FIRST)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(
            f"--web-systemd-socket: descriptor {FIRST} is no socket: {error.strerror}", "a listening socket",
            "see the unit's .socket",
        ) from error  # fmt: skip
    if not listens:
        raise ConfigError(
            f"--web-systemd-socket: descriptor {FIRST} does not listen", "a listening socket",
            "use ListenStream in the unit's .socket",
        )  # fmt: skip
    listener.setblocking(False)
    return listener
