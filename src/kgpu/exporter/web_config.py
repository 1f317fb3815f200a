"""Prometheus' web config file: TLS, client certificates, users with bcrypt passwords, headers of every answer.

The keys are those of the exporter toolkit. An unknown or unsupported key is an error: there must not be less protection
than the file asks for. This is pure; ``web_access`` acts on it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.errors import ConfigError
from kgpu.formats import strict
from kgpu.formats.strict import Problems, Table
from kgpu.formats.yaml import load_document

if TYPE_CHECKING:
    from kgpu.formats.yaml import Path

NO_CLIENT, IF_GIVEN, REQUIRED = "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
VERSIONS: Final = {"TLS10": "TLSv1", "TLS11": "TLSv1_1", "TLS12": "TLSv1_2", "TLS13": "TLSv1_3"}
"""Names in ``ssl.TLSVersion`` by the file's names."""

# OpenSSL's names by Go's. Go also has suites without forward secrecy and with CBC and SHA-256, which nobody should use.
CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    # Of TLS 1.3, where neither Go nor this takes a choice.
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
}
CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_HEADERS: Final = (
    "Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options",
    "X-XSS-Protection",
)  # fmt: skip
_BCRYPT: Final = re.compile(r"\$2[abxy]?\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
_USER_LIMIT: Final = 256


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate or key: a file, or the text itself. Neither: not given."""

    file: str = ""
    text: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.file or self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How connections are encrypted. ``ciphers`` and ``curve`` are OpenSSL's names, empty for the usual ones."""

    certificate: Pem
    key: Pem
    client_auth: str = NO_CLIENT
    client_ca: Pem = Pem()
    client_names: frozenset[str] = frozenset()
    least: str = "TLS12"
    most: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    curve: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that have to be read again when they change."""
        return tuple(pem.file for pem in (self.certificate, self.key, self.client_ca) if pem.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The parsed file. ``users`` are bcrypt hashes by name."""

    tls: Tls | None = None
    users: dict[str, str] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = ()


def _texts(problems: Problems, path: Path, value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return tuple(value)
    problems.add(path, f"{strict.raw(value)} is no list of texts", "a list of texts")
    return ()


def _known(words: dict[str, str], what: str, problems: Problems, path: Path, value: Any) -> tuple[str, ...]:
    chosen = _texts(problems, path, value)
    for word in chosen:
        strict.choice(f"unknown {what} ", *words)(problems, path, word)
    return tuple(dict.fromkeys(words[word] for word in chosen if words.get(word)))


def _curves(problems: Problems, path: Path, value: Any) -> str:
    curves = _known(CURVES, "curve", problems, path, value)
    # Python's ssl takes one curve. With several no restriction is set: all are safe.
    return curves[0] if len(curves) == 1 else ""


def _users(problems: Problems, path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        problems.add(path, "it is not a mapping", "user names with bcrypt hashes")
        return {}
    if len(value) > _USER_LIMIT:
        problems.add(path, f"there are {len(value)} users", f"at most {_USER_LIMIT}")
    for name, hashed in value.items():
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            # The value is not shown: it may be a password.
            problems.add((*path, name), "the value is no bcrypt hash", "a bcrypt hash, such as of `htpasswd -nBC 10`")
        if ":" in str(name):
            problems.add((*path, name), "a user's name can't have a colon", "a name without colon")
    return {str(name): str(hashed) for name, hashed in value.items()}


def _header(problems: Problems, path: Path, value: Any) -> str | None:
    header = strict.text(problems, path, value)
    if header is not None and not (header.isascii() and header.isprintable()):
        problems.add(path, "it is no header's value", "printable ASCII on one line")
        return None
    return header


_VERSION: Final = strict.choice("unknown TLS version ", *VERSIONS)
_TLS: Final[Table] = {
    "cert_file": strict.text,
    "key_file": strict.text,
    "cert": strict.text,
    "key": strict.text,
    "client_auth_type": strict.choice(
        "unknown client auth ", NO_CLIENT, "RequestClientCert", "RequireAnyClientCert", IF_GIVEN, REQUIRED
    ),
    "client_ca_file": strict.text,
    "client_ca": strict.text,
    "client_allowed_sans": _texts,
    "min_version": _VERSION,
    "max_version": _VERSION,
    "cipher_suites": partial(_known, CIPHERS, "cipher suite"),
    "curve_preferences": _curves,
    "prefer_server_cipher_suites": strict.boolean,
}
_FILE: Final[Table] = {
    "tls_server_config": _TLS,
    "http_server_config": {"http2": strict.boolean, "headers": dict.fromkeys(_HEADERS, _header)},
    "basic_auth_users": _users,
}


def parse_web_config(text: str, path: str) -> WebConfig:
    """Parse the file's text; relative names are relative to ``path``. Raises ConfigError for the first problem."""
    document = load_document(text, source=path)
    problems = Problems(path, document, known=_FILE)
    tables = strict.read_table(problems, (), document.value, _FILE, exact=True)
    tls = None
    if "tls_server_config" in tables:
        tls = _tls(problems, tables["tls_server_config"], os.path.dirname(os.path.abspath(path)))
    if problems.found:
        raise problems.found[0]
    headers = tables.get("http_server_config", {}).get("headers", {})
    return WebConfig(tls=tls, users=tables.get("basic_auth_users", {}), headers=tuple(headers.items()))


def _tls(problems: Problems, table: dict[str, Any], folder: str) -> Tls | None:
    where: Path = ("tls_server_config",)

    def pem(name: str) -> Pem:
        file, text = table.get(f"{name}_file", ""), table.get(name, "")
        if file and text:
            problems.add(where, f"both {name} and {name}_file are given", "one of the two")
        return Pem(os.path.join(folder, file) if file else "", text)

    certificate, key, client_ca = pem("cert"), pem("key"), pem("client_ca")
    auth = table.get("client_auth_type", NO_CLIENT)
    least, most = table.get("min_version", "TLS12"), table.get("max_version", "TLS13")
    order = list(VERSIONS)
    rules = (
        (not certificate, "there is no certificate", "cert_file (or cert) with the certificate"),
        (not key, "there is no key", "key_file (or key) with the certificate's key"),
        (bool(client_ca) and auth == NO_CLIENT, "client_ca_file is given, and client certificates are not asked for",
         f"client_auth_type {REQUIRED} or {IF_GIVEN}"),
        (auth in {IF_GIVEN, REQUIRED} and not client_ca, f"{auth} needs to know who signs", "client_ca_file"),
        (auth == "RequireAnyClientCert", "a certificate that nobody checks protects nothing, and is not supported",
         f"{REQUIRED} with client_ca_file"),
        (bool(table.get("client_allowed_sans")) and auth != REQUIRED,
         "client_allowed_sans is given, and certificates are not required", f"client_auth_type {REQUIRED}"),
        (order.index(least) > order.index(most), f"min_version {least} is above max_version {most}", "the other way"),
    )  # fmt: skip
    for broken, what, expected in rules:
        if broken:
            problems.add(where, what, expected)
    if problems.found:
        return None
    return Tls(
        certificate=certificate,
        key=key,
        client_auth=NO_CLIENT if auth == "RequestClientCert" else auth,
        client_ca=client_ca,
        client_names=frozenset(table.get("client_allowed_sans", ())),
        least=least,
        most=most,
        ciphers=table.get("cipher_suites", ()),
        curve=table.get("curve_preferences", ""),
    )


def missing(what: str) -> ConfigError:
    """The error for a web config that needs a package which is not installed."""
    return ConfigError(
        f"the web config file has users, and {what} is not installed", f"the Python package {what}",
        f"install it (pip install {what}), or remove basic_auth_users",
    )  # fmt: skip
