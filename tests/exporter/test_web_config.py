"""Prometheus' web config file: every key means something or is refused; nobody gets less protection than it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.exporter.web_config import CIPHERS, REQUIRED, parse_web_config
from tests.budget import tries

HASHED = "$2b$04$" + "." * 53
TLS = "tls_server_config: {cert_file: a.crt, key_file: /etc/a.key%s}\n"


def test_names_are_beside_the_file():
    found = parse_web_config(TLS % ", min_version: TLS13", "/etc/web/config.yml").tls
    assert found is not None
    assert found.files == ("/etc/web/a.crt", "/etc/a.key")
    assert (found.least, found.most) == ("TLS13", "TLS13")


def test_an_empty_file_is_plain_http():
    found = parse_web_config("", "x")
    assert (found.tls, found.users, found.headers) == (None, {}, ())


def test_everything_at_once():
    found = parse_web_config(
        TLS % f", client_auth_type: {REQUIRED}, client_ca_file: ca.crt, client_allowed_sans: [prometheus],"
        " cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256],"
        " prefer_server_cipher_suites: true, curve_preferences: [X25519]"
        + "http_server_config: {http2: false, headers: {X-Frame-Options: deny}}\n"
        f"basic_auth_users: {{alice: {HASHED}}}\n",
        "/x",
    )
    assert found.tls is not None
    assert found.tls.client_names == {"prometheus"}
    assert found.tls.ciphers == (CIPHERS["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],)
    assert found.tls.curve == "X25519"
    assert found.headers == (("X-Frame-Options", "deny"),)
    assert found.users == {"alice": HASHED}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("tls_server_confg: {}", "did you mean"),
        ("tls_server_config: {cert_file: a}", "there is no key"),
        ("tls_server_config: {key_file: a}", "there is no certificate"),
        ("tls_server_config: {}", "there is no certificate"),
        (TLS % ", cert: x", "both cert and cert_file"),
        (TLS % ", client_auth_type: RequireAndVerifyClientCert", "needs to know who signs"),
        (TLS % ", client_ca_file: ca", "client certificates are not asked for"),
        (TLS % ", client_auth_type: RequireAnyClientCert", "protects nothing"),
        (TLS % ", client_auth_type: VerifyClientCertIfGiven, client_ca_file: a, client_allowed_sans: [x]", "not required"),
        (TLS % ", client_auth_type: verify", "unknown client auth"),
        (TLS % ", min_version: TLS14", "unknown TLS version"),
        (TLS % ", min_version: TLS13, max_version: TLS12", "above"),
        (TLS % ", cipher_suites: [TLS_NULL]", "unknown cipher suite"),
        (TLS % ", cipher_suites: TLS_NULL", "no list"),
        (TLS % ", cert_file: [a]", "there twice|duplicate|twice"),
        ("basic_auth_users: {alice: secret}", "no bcrypt hash"),
        ("basic_auth_users: {'a:b': '" + HASHED + "'}", "colon"),
        ("basic_auth_users: [a]", "not a mapping"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nSet-Cookie: x"}}', "no header's value"),
        ("http_server_config: {headers: {Location: x}}", "unknown key"),
        ("[1]", "not a mapping"),
        ("{", "expected|YAML|mapping"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(text, word):
    with pytest.raises(ConfigError, match=word) as caught:
        parse_web_config(text, "/etc/web.yml")
    assert "secret" not in str(caught.value)


@tries(50)
@given(st.text(max_size=60))
def test_any_text_is_a_config_or_refused(text):
    try:
        parse_web_config(text, "x")
    except ConfigError:
        return
