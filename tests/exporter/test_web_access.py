"""TLS and passwords over real connections: who is let in, new certificates, and files that become wrong."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import os
import ssl

import bcrypt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kgpu.base import http
from kgpu.base.connection_limits import MOST, PeerConnection
from kgpu.base.errors import ConfigError, HostError
from kgpu.base.http import Address, Response, StatusServer
from kgpu.exporter.web_access import WebAccess
from tests.exporter.serving import fetch, serving

NOW = dt.datetime.now(dt.UTC)
CURRENT = "kgpu_exporter_web_config_current"
KEY = ec.generate_private_key(ec.SECP256R1())
CA_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test CA")])


def certificate(name: str, *, ca: bool = False) -> bytes:
    subject = CA_NAME if ca else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(CA_NAME).public_key(KEY.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(name)]), critical=False)
    )  # fmt: skip
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


CA = certificate("ca", ca=True)
PRIVATE = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)  # fmt: skip
HASHED = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users: {{ali: {HASHED}}}\n"
TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key%s}\n"


@pytest.fixture
def folder(tmp_path):
    for name, content in (("server.crt", certificate("one")), ("server.key", PRIVATE), ("ca.crt", CA)):
        (tmp_path / name).write_bytes(content)
    return tmp_path


def write(folder, text: str):
    path = folder / "web.yml"
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)
    return path


def client(folder, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CA.decode())
    if name:
        (folder / "client.pem").write_bytes(certificate(name) + PRIVATE)
        context.load_cert_chain(folder / "client.pem")
    return context


def web(path) -> dict[str, str]:
    return {"web_config": str(path)}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def until(ask, good) -> None:
    async with asyncio.timeout(60):
        while not good(await ask()):  # noqa: ASYNC110 - what a server answers
            await asyncio.sleep(0.02)


async def shown(port: int, context: ssl.SSLContext) -> set[str]:
    """The names in the certificate that the server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    found = writer.get_extra_info("peercert")["subjectAltName"]
    writer.transport.abort()
    return {name for _, name in found}


async def test_passwords(folder):
    async with serving(flags=web(write(folder, USERS))) as served:
        port = served.address.port
        for headers in ({}, basic("ali", "wrong"), basic("baba", "open sesame"), basic("ali", ""), {"Authorization": "Basic %%"},
                        {"Authorization": "Bearer x"}, basic("ali", "x" * 4000)):  # fmt: skip
            status, answered, body = await fetch(port, "/metrics", headers)
            assert (status, answered["www-authenticate"], body) == (401, "Basic", b"Unauthorized\n")
        assert (await fetch(port, "/health"))[0] == 401
        for _ in range(2):
            status, _, body = await fetch(port, "/metrics", basic("ali", "open sesame"))
            assert status == 200
            assert b"kgpu_gpu_up" in body


async def test_a_password_that_was_right_costs_no_second_bcrypt(folder, monkeypatch):
    asked = []
    check = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda *words: asked.append(words) or check(*words))
    async with serving(flags=web(write(folder, USERS))) as served:
        for _ in range(3):
            assert (await fetch(served.address.port, "/metrics", basic("ali", "open sesame")))[0] == 200
        assert len(asked) == 1
        write(folder, USERS.replace("ali", "baba"))
        await until(
            lambda: fetch(served.address.port, "/metrics", basic("ali", "open sesame")), lambda found: found[0] == 401
        )


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01"], ids=["nothing", "a handshake's first bytes"])
async def test_who_begins_no_handshake_takes_the_page_from_nobody(folder, monkeypatch, begun):
    """The oldest of them goes, as of those that send no request in plain HTTP."""
    monkeypatch.setattr(http, "connection_from", lambda peer, _here, _node: PeerConnection(peer, peer == "127.0.0.1"))
    access = WebAccess(str(write(folder, TLS % "")), lambda _: None)
    server = StatusServer({"/metrics": lambda: Response(200, "ok")}, access=access)
    address = await server.start(Address("127.0.0.1", 0))
    context, idle = client(folder), []

    async def connect(source: str, **more):
        return await asyncio.open_connection("127.0.0.1", address.port, local_addr=(source, 0), **more)

    for number in range(2 * MOST):
        _, silent = await connect(f"127.9.0.{number % 20 + 1}")
        silent.write(begun)
        idle.append(silent)
    for source in ("127.0.0.1", "127.9.0.1", "127.8.0.1"):
        reader, writer = await connect(source, ssl=context, server_hostname="localhost")
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert len(server._open) <= MOST
    for silent in idle:
        silent.close()
    await server.close()


async def test_encrypted_with_headers_and_a_large_answer(folder):
    text = TLS % "" + "http_server_config: {headers: {X-Frame-Options: deny}}\n"
    async with serving(flags=web(write(folder, text))) as served:
        context = client(folder)
        results = await asyncio.gather(*(fetch(served.address.port, "/metrics", {}, context) for _ in range(10)))
        for status, headers, body in results:
            assert status == 200
            assert headers["x-frame-options"] == "deny"
            assert b"kgpu_gpu_up" in body
        with pytest.raises((OSError, ValueError, KeyError, IndexError)):
            await fetch(served.address.port, "/metrics")
        # Whoever speaks nothing, or no TLS, harms nobody.
        _, writer = await asyncio.open_connection("127.0.0.1", served.address.port)
        assert (await fetch(served.address.port, "/health", {}, context))[0] == 200
        writer.close()


async def test_client_certificates(folder):
    text = (
        TLS
        % ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt, client_allowed_sans: [prometheus]"
    )
    async with serving(flags=web(write(folder, text))) as served:
        port = served.address.port
        assert (await fetch(port, "/metrics", {}, client(folder, "prometheus")))[0] == 200
        assert (await fetch(port, "/metrics", {}, client(folder, "somebody")))[0] == 403
        with pytest.raises((OSError, ValueError, KeyError, IndexError)):
            await fetch(port, "/metrics", {}, client(folder))


async def test_a_new_certificate_and_a_broken_one(folder):
    async with serving(flags=web(write(folder, TLS % ""))) as served:
        port, context = served.address.port, client(folder)
        assert await shown(port, context) == {"localhost", "one"}
        (folder / "server.crt").write_bytes(certificate("two"))
        await until(lambda: shown(port, context), lambda names: "two" in names)
        (folder / "server.crt").write_bytes(b"nonsense")
        line = f'{CURRENT}{{source="file {folder / "web.yml"}"}} 0'.encode()
        await until(lambda: fetch(port, "/metrics", {}, context), lambda found: line in found[2])
        assert served.told("WebConfigRefused")
        assert "two" in await shown(port, context)


async def test_inline_certificate_and_key(folder):
    def block(name: str, pem: bytes) -> str:
        return f"  {name}: |\n" + "".join(f"    {line}\n" for line in pem.decode().splitlines())

    text = "tls_server_config:\n" + block("cert", certificate("inline")) + block("key", PRIVATE)
    async with serving(flags=web(write(folder, text))) as served:
        assert "inline" in await shown(served.address.port, client(folder))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("users: {}", ConfigError),
        (TLS % "" + "extra: 1\n", ConfigError),
        ("tls_server_config: {cert_file: none.crt, key_file: server.key}\n", HostError),
        ("tls_server_config: {cert_file: server.key, key_file: server.crt}\n", ConfigError),
        (None, HostError),
    ],
)
async def test_nothing_is_served_without_a_good_file_at_the_start(folder, text, error):
    path = write(folder, text) if text is not None else folder / "none.yml"
    with pytest.raises(error):
        WebAccess(str(path), lambda _: None)
    with pytest.raises(error):
        async with serving(flags=web(path)):
            pass


async def test_an_encrypted_key_asks_nobody_for_its_password(folder):
    secret = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pass")
    )
    (folder / "server.key").write_bytes(secret)
    with pytest.raises(ConfigError, match="can't be used"):
        WebAccess(str(write(folder, TLS % "")), lambda _: None)
