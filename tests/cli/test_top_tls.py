"""``kgpu top --scheme https --ca-file``: exporters with TLS are read where their certificate is trusted, else not."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kgpu.cli import top as module
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS
from tests.cli.test_top import Handler
from tests.top.exporting import exporter_pod, gpu_node, node_text

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an exporter at this machine's loopback address, signed by itself, with its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    file = tmp_path_factory.mktemp("tls") / "exporter.pem"
    file.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file


@pytest.fixture
def port(certificate: Path) -> Iterator[int]:
    """Of an exporter with TLS."""
    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.wanted = None  # type: ignore[attr-defined]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Proxied(FakeApi):
    """Knows how its pods were asked."""

    schemes: list[str]

    async def pod_page(self, *where, scheme: str = "http", **how) -> str:
        self.schemes.append(scheme)
        return await super().pod_page(*where, scheme=scheme, **how)


@pytest.fixture
def api(port: int, monkeypatch: pytest.MonkeyPatch) -> Proxied:
    """A cluster with that exporter."""
    found = Proxied()
    found.schemes = []
    pod = exporter_pod("gpu-a", ip=HOST)
    pod["spec"]["containers"][0]["ports"][0]["containerPort"] = port
    found.put(PODS, pod)
    found.put(NODES, gpu_node("gpu-a"))
    found.pages["gpu-operator", "exporter-gpu-a"] = node_text("n", 1)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_, **__: found)
    return found


def look(*words: str) -> dict:
    done = CliRunner().invoke(module.top, ["-o", "json", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (node,) = json.loads(done.output)["nodes"]
    return node


@pytest.mark.usefixtures("api")
def test_an_exporter_whose_certificate_is_trusted_is_read(certificate: Path) -> None:
    node = look("--via", "direct", "--scheme", "https", "--ca-file", str(certificate))
    assert (node["problem"], len(node["gpus"])) == (None, 2)


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("words", [["--scheme", "https"], []], ids=["nobody trusts it", "no TLS asked for"])
def test_without_either_it_is_told(words: list[str]) -> None:
    node = look("--via", "direct", *words)
    assert node["problem"] is not None
    assert node["gpus"] == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_api_server_is_told_to_ask_with_tls(api: Proxied, scheme: str) -> None:
    assert len(look("--via", "proxy", "--scheme", scheme)["gpus"]) == 1
    assert api.schemes == [scheme]
