"""Applies the web config file: the TLS context, authentication, and following the file and its certificates.

Promises: without a usable file at the start nothing is served at all; a file that becomes invalid later leaves the last
valid one in force, which advice and a metric report; new certificates are used from the next connection on.
Checking a password takes one bcrypt, in a thread, one at a time; correct ones are remembered, wrong ones are not, and
unknown users take as long.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import secrets
import ssl
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import ConfigError, HostError, UserError
from kgpu.base.http import Headers, Request, Response
from kgpu.base.inotify import follow_folders, homes
from kgpu.base.service import Complaint
from kgpu.exporter.self_metrics import ConfigState
from kgpu.exporter.web_config import (
    IF_GIVEN,
    NO_CLIENT,
    REQUIRED,
    VERSIONS,
    Pem,
    Tls,
    WebConfig,
    missing,
    parse_web_config,
)
from kgpu.host.bounded import read_regular

LIMIT: Final = 1 << 20
POLL_SECONDS: Final = 5.0
REMEMBERED: Final = 100
PASSWORD_BYTES: Final = 72
"""bcrypt ignores the rest of a longer password, here as in Go."""
NOBODY: Final = "$2b$10$" + "." * 53
_AUTH: Final = {NO_CLIENT: ssl.CERT_NONE, IF_GIVEN: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}
_UNAUTHORIZED: Final = Response(401, "Unauthorized\n", headers=(("WWW-Authenticate", "Basic"),))


class WebAccess:
    """A ``base.http.AccessPolicy`` by a web config file."""

    def __init__(self, path: str, report: AdviceSink) -> None:
        """Raises ConfigError, HostError."""
        self._path = path
        self._report = report
        self._complaint = Complaint(report)
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._one = asyncio.Lock()
        self._error: UserError | None = None
        self.changed: Callable[[], object] = lambda: None
        self._seen = self._state(())
        self._config, self._context = self._load()
        self._seen = self._state(self._files())

    def tls(self) -> ssl.SSLContext | None:
        return self._context

    def headers(self) -> Headers:
        return self._config.headers

    async def refuse(self, request: Request) -> Response | None:
        config = self._config
        names = config.tls.client_names if config.tls else frozenset()
        if names and not names & _names(request.certificate):
            return Response(403, "this certificate is not on the list\n")
        if config.users and not await self._knows(config, request.headers.get("authorization", "")):
            return _UNAUTHORIZED
        return None

    def followed(self) -> ConfigState:
        """The file's state, for metrics."""
        return ConfigState(source=f"file {self._path}", current=self._error is None)

    async def run(self) -> None:
        """Follow file and certificates until cancelled."""
        await follow_folders(lambda: homes(*map(Path, (self._path, *self._files()))), self._look, seconds=POLL_SECONDS)

    def _look(self) -> None:
        if self._state(self._files()) != self._seen or self._error is not None:
            self.reload()

    def reload(self) -> None:
        """Read the file and its certificates now."""
        self._seen = self._state(self._files())
        try:
            self._config, self._context = self._load()
        except UserError as error:
            self._error = error
            refused = Advice(
                subject=self._path, what="the last good web config stays", why=error.what,
                evidence=(f"expected: {error.expected}",), severity=Severity.WARNING, remedy=error.remedy,
                reason="WebConfigRefused",
            )  # fmt: skip
            if self._complaint.tell(refused):
                self.changed()
            return
        self._error = None
        self._complaint.over()
        self.changed()
        self._right.clear()
        self._seen = self._state(self._files())
        self._report(
            Advice(
                subject=self._path, what="the web config file is in force", why="it or its certificates have changed",
                reason="WebConfigRead",
            )
        )  # fmt: skip

    def _load(self) -> tuple[WebConfig, ssl.SSLContext | None]:
        raw, _ = read_regular(self._path, LIMIT, what="a web config file")
        try:
            config = parse_web_config(raw.decode(), self._path)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._path} is no UTF-8 text", "a web config file", "correct it") from error
        if config.users:
            try:
                import bcrypt  # noqa: F401
            except ImportError as error:
                raise missing("bcrypt") from error
        return config, make_context(config.tls) if config.tls else None

    def _files(self) -> tuple[str, ...]:
        return self._config.tls.files if self._config.tls else ()

    def _state(self, files: tuple[str, ...]) -> tuple[object, ...]:
        """A value that changes when one of the files does."""
        return tuple(_stat(name) for name in (self._path, *files))

    async def _knows(self, config: WebConfig, authorization: str) -> bool:
        user, password = _credentials(authorization)
        if user is None:
            return False
        hashed = config.users.get(user, NOBODY)
        parts = (user.encode(), hashed.encode(), password)
        key = hmac.new(self._secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), hashlib.sha256)
        if key.digest() in self._right:
            return True
        async with self._one:
            right = await asyncio.to_thread(_check, password, hashed)
        # A file that has changed meanwhile counts at once.
        if not right or config.users.get(user) is None or config is not self._config:
            return False
        self._right[key.digest()] = None
        if len(self._right) > REMEMBERED:
            self._right.popitem(last=False)
        return True


def make_context(tls: Tls) -> ssl.SSLContext:
    """The TLS context. Raises ConfigError for certificates and keys that can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old versions are chosen by the file, and off by default
        context.minimum_version = ssl.TLSVersion[VERSIONS[tls.least]]
        context.maximum_version = ssl.TLSVersion[VERSIONS[tls.most]]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    step = "certificate and key"
    try:
        with _Named(tls.certificate) as certificate, _Named(tls.key) as key:
            # Without a password of its own OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate, key, password=b"")
        step = "client_ca"
        if tls.client_ca:
            with _Named(tls.client_ca) as path:
                context.load_verify_locations(cafile=path)
        step = "cipher_suites"
        if tls.ciphers:
            context.set_ciphers(":".join(tls.ciphers))
        step = "curve_preferences"
        if tls.curve:
            context.set_ecdh_curve(tls.curve)
    except (OSError, ValueError) as error:
        raise _unusable(tls, step, error) from error
    context.verify_mode = _AUTH[tls.client_auth]
    return context


def _unusable(tls: Tls, step: str, error: Exception) -> UserError:
    reason = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError):
        reason = error.reason or reason
    for name in tls.files:
        if not os.access(name, os.R_OK):
            return HostError(
                f"{name} can't be read", "a PEM file that this user may read", "correct the web config file"
            )
    return ConfigError(
        f"the web config's {step} can't be used: {reason}",
        "a certificate in PEM form, the key that belongs to it, unencrypted, and OpenSSL's support for what is chosen",
        "correct the web config file, or the files that it names",
    )


class _Named:
    """Context manager that gives a PEM as a path: the file's own, or an in-memory file for the block."""

    def __init__(self, pem: Pem) -> None:
        self._pem = pem
        self._fd = -1

    def __enter__(self) -> str:
        if self._pem.file:
            return self._pem.file
        self._fd = os.memfd_create("pem", os.MFD_CLOEXEC)
        os.write(self._fd, self._pem.text.encode())
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _stat(name: str) -> object:
    try:
        status = os.stat(name)
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_dev, status.st_mtime_ns, status.st_size


def _credentials(authorization: str) -> tuple[str | None, bytes]:
    """User and password of a Basic header."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None, b""
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode() if colon else None), password
    except (binascii.Error, ValueError):
        return None, b""


def _check(password: bytes, hashed: str) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password[:PASSWORD_BYTES], hashed.encode())
    except ValueError:
        return False


def _names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The certificate's alternative names: hosts, addresses, mail, URIs."""
    return frozenset(str(value) for _, value in (certificate or {}).get("subjectAltName", ()))
