"""Credentials and certificates that commands send and trust, from files: none is ever an argument or in a message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgpu.base.errors import ConfigError

if TYPE_CHECKING:
    import ssl

MAX_BYTES: Final = 4096
MAX_TOKEN: Final = 64 * 1024


def basic_auth(path: str) -> dict[str, str]:
    """The header for basic authentication from a file with USER:PASSWORD; none without a file. Raises UserError."""
    if not path:
        return {}
    import base64

    from kgpu.host.bounded import read_regular

    raw, _ = read_regular(Path(path), MAX_BYTES, what="a file with USER:PASSWORD")
    line = raw.strip()
    if b":" not in line or b"\n" in line:
        raise ConfigError(f"{path} has no USER:PASSWORD", "one line with a colon in it", "correct the file")
    return {"Authorization": f"Basic {base64.b64encode(line).decode()}"}


def bearer(path: str) -> dict[str, str]:
    """The header for a bearer token from a file; none without a file. Raises UserError."""
    if not path:
        return {}
    from kgpu.host.bounded import read_regular

    raw, _ = read_regular(Path(path), MAX_TOKEN, what="a file with a bearer token")
    token = raw.strip().decode("latin-1")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{path} has no token", "one word on one line", "correct the file")
    return {"Authorization": f"Bearer {token}"}


def trusting(path: str, flag: str) -> ssl.SSLContext:
    """Trusts the certificates of a file, the system's without one. Raises ConfigError."""
    import ssl

    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"can't read {path}: {error}", "certificates in PEM", f"correct {flag}") from error
