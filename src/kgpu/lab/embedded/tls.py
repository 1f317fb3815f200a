"""The lab's own keys and certificates: a CA, the API server's certificate, one for calling kubelets, a token key.

All are made once and kept; one that is missing, about to expire or lacks a host name is made again. Keys are readable
by their owner alone and never logged. EC keys (P-256), because they are made in milliseconds.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_LIFE: Final = dt.timedelta(days=3650)
_RENEW: Final = dt.timedelta(days=1)  # before the end
_SKEW: Final = dt.timedelta(hours=1)  # clocks of others may be behind
_STAMP: Final = "served-hosts"
API_HOSTS: Final = (
    "localhost", "127.0.0.1", "::1", "10.96.0.1",
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pki:
    """The files in a lab's ``pki`` folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def token_key(self) -> Path:
        """The key that signs service account tokens."""
        return self.folder / "sa.key"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def kubelet_client(self) -> ssl.SSLContext:
        """For calling kubelets: shows the API server's client certificate. As with the real API server's defaults, the
        kubelet's own certificate, which it may have signed itself, is not checked.
        """
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        name = "apiserver-kubelet-client"
        context.load_cert_chain(self.certificate(name), self.key(name))
        return context


def ensure(folder: Path, *, hosts: Sequence[str] = ()) -> Pki:
    """The keys and certificates in ``folder``; ``hosts`` are names and addresses besides the usual ones.

    Raises LabError when the folder can't be written or holds something else.
    """
    pki = Pki(folder)
    wanted = tuple(dict.fromkeys((*API_HOSTS, *hosts)))
    try:
        if _current(pki, wanted):
            return pki
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        _make(pki, wanted)
    except OSError as error:
        raise LabError(
            f"{error.filename or folder}: {error.strerror or error}",
            "a folder that can be written, for the lab's keys and certificates",
            "check its owner and the free space, or choose another folder with --dir",
        ) from error
    except ValueError as error:
        raise LabError(
            f"the keys in {folder} can't be used: {error}",
            "keys and certificates as the lab made them",
            '"kgpu lab down", which removes them, then "kgpu lab up"',
        ) from error
    return pki


def _current(pki: Pki, hosts: tuple[str, ...]) -> bool:
    """Whether all files are valid, without parsing them: importing the library is slower than the server's start."""
    try:
        until, *kept = (pki.folder / _STAMP).read_text().split()
        fresh = dt.datetime.now(dt.UTC) < dt.datetime.fromisoformat(until) - _RENEW
    except (FileNotFoundError, ValueError, TypeError):
        return False
    names = ("server", "apiserver-kubelet-client")
    files = [pki.ca, pki.token_key, *map(pki.certificate, names), *map(pki.key, names)]
    return fresh and set(hosts) <= set(kept) and all(os.path.exists(file) for file in files)


def _make(pki: Pki, hosts: tuple[str, ...]) -> None:
    authority = _authority(pki)
    issue(pki, "server", common_name="kube-apiserver", hosts=hosts, authority=authority)
    issue(
        pki, "apiserver-kubelet-client", common_name="kube-apiserver-kubelet-client",
        organizations=("system:masters",), authority=authority,
    )  # fmt: skip
    if not pki.token_key.exists():
        _write_key(pki.token_key, _new_key())
    until = authority[0].not_valid_after_utc
    write_atomic(pki.folder / _STAMP, "\n".join((until.isoformat(), *hosts, "")), mode=0o600)


def _authority(pki: Pki) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    if pki.ca.exists() and pki.key("ca").exists():
        certificate = x509.load_pem_x509_certificate(pki.ca.read_bytes())
        if certificate.not_valid_after_utc - _RENEW > dt.datetime.now(dt.UTC):
            return certificate, _load_key(pki.key("ca"))
    key = _new_key()
    name = _name("kgpu-lab-ca", ())
    certificate = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(certifies=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(pki.key("ca"), key)
    write_atomic(pki.ca, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def issue(
    pki: Pki, name: str, *, common_name: str, organizations: Sequence[str] = (), hosts: Sequence[str] = (),
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
) -> None:  # fmt: skip
    """Make ``NAME.crt`` and ``NAME.key``, signed by the lab's CA: for a server when it has hosts, else for a client."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID

    certificate, signer = authority or _authority(pki)
    key = _new_key()
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(_name(common_name, organizations), certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certifies=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
    signed = builder.sign(signer, hashes.SHA256())
    _write_key(pki.key(name), key)
    write_atomic(pki.certificate(name), signed.public_bytes(serialization.Encoding.PEM))


def _builder(subject: Any, issuer: Any, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    from cryptography import x509

    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
    )


def _usage(*, certifies: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=not certifies, data_encipherment=False,
        key_agreement=False, key_cert_sign=certifies, crl_sign=certifies, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        msg = f"{path.name} is not an EC key"
        raise ValueError(msg)  # noqa: TRY004 - as the library reports every other bad key
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_atomic(path, text, mode=0o600)
