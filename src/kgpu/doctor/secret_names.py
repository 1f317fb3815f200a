"""Whether a name sounds like that of a credential: a variable's, a field's, a header's, a flag's or a key's.

Names are split into words at dashes, dots, underscores and capitals: ``DEFAULT_ADMIN_PASSCODE``, ``adminPass`` and
``db-creds`` are read alike.
"""

from __future__ import annotations

import functools
import re
from typing import Final

_ANYWHERE: Final = re.compile(
    r"(?:PASSW(?:OR)?D|PASSPHRASE|PASSCODE|SECRET|TOKEN(?!I[SZ]E)|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH(?!OR)|LICENSE_KEY"
    r"|CONNECTION[_-]?STRING|COOKIE|^(?:PROXY-)?AUTHORIZATION$|[_-]KEY$|^KEY$)",
    re.IGNORECASE,
)
"""What is in no word of another meaning."""
_WORDS: Final = frozenset(
    {
        "pass",
        "pwd",
        "pw",
        "passwd",
        "salt",
        "cred",
        "creds",
        "htpasswd",
        "netrc",
        "pgpass",
        "dockercfg",
        "dockerconfigjson",
    }
)
_KEYS: Final = frozenset(
    {"account", "client", "consumer", "deploy", "encryption", "hmac", "integration", "license", "master", "service",
     "session", "shared", "signing", "ssh", "storage", "webhook"}
)  # fmt: skip
"""Whose key is one: ``accountKey`` is, ``topologyKey`` is not."""
_SPLIT: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@functools.lru_cache(maxsize=8192)
def words(name: str) -> tuple[str, ...]:
    """The words of a name, in small letters."""
    return tuple(word.lower() for word in _SPLIT.findall(name))


@functools.lru_cache(maxsize=8192)
def sounds_secret(name: str) -> bool:
    """True where the value under this name has to be hidden."""
    return bool(_ANYWHERE.search(name)) or any(map(_is_one, *_with_next(words(name)))) or _is_login(words(name))


def _with_next(parts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return parts, (*parts[1:], "")


def _is_one(word: str, following: str) -> bool:
    if word == "pass" and following == "device":  # PASS_DEVICE_SPECS is the device plugin's
        return False
    return word in _WORDS or (word in _KEYS and following == "key")


def _is_login(parts: tuple[str, ...]) -> bool:
    """``DB_LOGIN`` is what one logs in with; ``--login`` and ``loginServer`` are not."""
    return len(parts) > 1 and parts[-1] in ("login", "logins")
