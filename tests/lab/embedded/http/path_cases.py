"""What is no matter of a resource: timeouts, health checks and the issuer, and what kube-apiserver 1.35 says of them.

``play`` asks a server, the embedded one in ``test_paths``, a real one in ``tests/lab/real/test_embedded_paths``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ANY = "*/*"
JSON = "application/json"
Ask = Callable[[str, str], tuple[int, Any]]
"""A path and what is accepted -> status and the decoded answer."""

BAD = "invalid timeout specified in the request URL - time: "
ISSUER = "https://kubernetes.default.svc.cluster.local"


class Case(NamedTuple):
    """A path, and what comes back: the message of a refusal, the text of a plain answer, "" for any object."""

    path: str
    code: int
    text: str = ""
    accept: str = JSON


MAPS = "/api/v1/namespaces/default/configmaps"
CASES = [
    Case(f"{MAPS}?timeout=x", 400, f'{BAD}invalid duration "x"'),
    Case(f"{MAPS}?timeout=5", 400, f'{BAD}missing unit in duration "5"'),
    Case(f"{MAPS}?timeout=5q", 400, f'{BAD}unknown unit "q" in duration "5q"'),
    Case(f"{MAPS}?timeout=1m5q", 400, f'{BAD}unknown unit "q" in duration "1m5q"'),
    Case(f"{MAPS}?timeout=.s", 400, f'{BAD}invalid duration ".s"'),
    Case(f"{MAPS}?timeout=infinite", 400, f'{BAD}invalid duration "infinite"'),
    Case(f"{MAPS}/none?timeout=x", 400, f'{BAD}invalid duration "x"'),
    Case("/api/v1/nothings?timeout=x", 400, f'{BAD}invalid duration "x"'),
    Case("/version?timeout=x", 400, f'{BAD}invalid duration "x"'),
    Case(f"{MAPS}?timeout=", 200),
    Case(f"{MAPS}?timeout=0", 200),
    Case(f"{MAPS}?timeout=32s", 200),
    Case("/api/v1/namespaces/default/pods/none/log?timeout=x", 404, 'pods "none" not found'),
    Case("/healthz", 200, "ok"),
    Case("/livez/ping?verbose", 200, "ok"),
    Case("/healthz?verbose", 200, "[+]ping ok\n[+]log ok\n[+]etcd ok\nhealthz check passed\n"),
    Case("/livez?verbose=true", 200, "[+]ping ok\n[+]log ok\n[+]etcd ok\nlivez check passed\n"),
    Case("/readyz?verbose", 200, "[+]ping ok\n[+]log ok\n[+]etcd ok\nreadyz check passed\n"),
    Case("/readyz?exclude=log", 200, "ok"),
    Case("/readyz?verbose&exclude=log&exclude=nope", 200,
         "[+]ping ok\n[+]log excluded: ok\n[+]etcd ok\n"
         'warn: some health checks cannot be excluded: no matches for "nope"\nreadyz check passed\n'),
    Case("/.well-known/openid-configuration", 200),
    Case("/openid/v1/jwks", 200, "", ANY),
    Case("/openid/v1/jwks", 406, "406: Not Acceptable\n\nAvailable representations: application/jwk-set+json"),
    Case("/openid", 404, "404 page not found\n"),
]  # fmt: skip
# Checks of parts that only the real server has.
_OWN_PARTS = re.compile(r"\[\+\](?:poststarthook|autoregister|informer|etcd-readiness|api|shutdown)[^\n]*\n")
ABOUT = ("issuer", "jwks_uri", "response_types_supported", "subject_types_supported",
         "id_token_signing_alg_values_supported")  # fmt: skip


def play(ask: Ask) -> Iterator[tuple[Case, Case]]:
    """Every case with its answer in the same form."""
    for case in CASES:
        code, value = ask(case.path, case.accept)
        text = _OWN_PARTS.sub("", value) if isinstance(value, str) else value["message"] if code >= 400 else ""
        yield case, Case(case.path, code, text, case.accept)


def issuer(ask: Ask) -> None:
    """Who signs tokens is told as OpenID Connect wants it, with keys that go by the tokens' own name."""
    _, about = ask("/.well-known/openid-configuration", ANY)
    _, keys = ask("/openid/v1/jwks", ANY)
    assert tuple(about) == ABOUT
    assert about["issuer"] == ISSUER
    assert about["jwks_uri"].startswith("https://")
    assert about["jwks_uri"].endswith("/openid/v1/jwks")
    assert about["id_token_signing_alg_values_supported"] == [key["alg"] for key in keys["keys"]]
    assert {"use", "kty", "kid", "alg"} <= set(keys["keys"][0])
    _, root = ask("/", JSON)
    assert {"/.well-known/openid-configuration", "/openid/v1/jwks"} <= set(root["paths"])
