"""Timeouts, health checks and the issuer of tokens: the real server's words, from the embedded one."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.lab.embedded.http import path_cases
from tests.lab.embedded.served import Server


def asker(server: Server) -> path_cases.Ask:
    def ask(path: str, accept: str) -> tuple[int, Any]:
        found = server.ask("GET", path, accept=accept)
        plain = "json" not in found.headers["content-type"]
        return found.code, found.body.decode() if plain else found.value

    return ask


def test_are_answered_in_the_real_words(server: Server) -> None:
    assert [answer for case, answer in path_cases.play(asker(server)) if answer != case] == []


def test_a_bad_timeout_is_refused_whoever_asks_and_a_watch_has_none(server: Server) -> None:
    assert server.ask("GET", f"{path_cases.MAPS}?timeout=x", token="wrong").code == 400
    assert server.ask("GET", f"{path_cases.MAPS}?watch=1&timeoutSeconds=1&timeout=x").code == 200


def test_the_issuer_of_tokens_is_told(server: Server) -> None:
    path_cases.issuer(asker(server))
    found = server.ask("GET", "/openid/v1/jwks")
    assert found.headers["content-type"] == "application/jwk-set+json"
    assert found.headers["cache-control"] == "public, max-age=3600"
    assert server.ask("GET", "/openid/v1/jwks", token="").code == 403


def test_a_token_can_be_verified_with_the_keys_that_are_told(server: Server) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = server.ask("POST", path, {"spec": {}}).value["status"]["token"]
    head, body, signature = token.split(".")
    wanted = json.loads(raw(head))["kid"]
    (key,) = [one for one in server.ask("GET", "/openid/v1/jwks").value["keys"] if one["kid"] == wanted]
    numbers = ec.EllipticCurvePublicNumbers(number(raw(key["x"])), number(raw(key["y"])), ec.SECP256R1())
    signed = raw(signature)
    encoded = encode_dss_signature(number(signed[:32]), number(signed[32:]))
    numbers.public_key().verify(encoded, f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")
