"""Who is let in: one browser with the link, and from it only what the page itself sends."""

from __future__ import annotations

import re

import pytest

from kgpu.base.http import Request, Response
from kgpu.overview.session import LocalSession

HOST = "127.0.0.1:8080"


def request(path: str = "/", *, method: str = "GET", query: str = "", **headers: str) -> Request:
    return Request(
        method, path, {"host": HOST, **{key.replace("_", "-"): text for key, text in headers.items()}}, query=query
    )


async def let_in() -> tuple[LocalSession, str]:
    """A session that has been opened, and the cookie that it gave."""
    session = LocalSession()
    link = session.opened("127.0.0.1", 8080)
    answer = await session.refuse(request(query=link.partition("?")[2]))
    assert answer is not None
    assert answer.status == 200
    ((name, cookie),) = answer.headers
    assert name == "Set-Cookie"
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    return session, cookie.partition(";")[0]


async def status_of(session: LocalSession, asked: Request) -> int:
    refused = await session.refuse(asked)
    return refused.status if isinstance(refused, Response) else 200


async def test_the_link_gives_a_cookie_once() -> None:
    session = LocalSession()
    link = session.opened("127.0.0.1", 8080)
    assert re.fullmatch(r"http://127\.0\.0\.1:8080/\?token=[\w-]{43}", link)
    asked = request(query=link.partition("?")[2])
    assert await status_of(session, asked) == 200
    assert await status_of(session, asked) == 401


@pytest.mark.parametrize(
    "host", ["evil.example:8080", "127.0.0.1:8081", "127.0.0.1", "", "localhost:8080.evil.example"]
)
async def test_another_name_than_the_links_is_refused(host) -> None:
    session, cookie = await let_in()
    for path in ("/", "/style.css"):
        assert await status_of(session, Request("GET", path, {"host": host, "cookie": cookie})) == 403


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        "kgpu-overview-8080=",
        "kgpu-overview-8080=x",
        "kgpu-overview-8081={value}",
        "other={value}",
        "=;=",
        "a=\x00",
        "{value}",
    ],
)
async def test_without_the_cookie_nobody_sees_anything(cookie) -> None:
    session, good = await let_in()
    sent = cookie.replace("{value}", good.partition("=")[2])
    for path in ("/", "/live", "/lab", "/nowhere"):
        assert await status_of(session, request(path, cookie=sent)) == 401
    assert await status_of(session, request("/", cookie=f"a=b; {good}; c=d")) == 200


@pytest.mark.parametrize("query", ["token=", "token=x", "token", "token=x&" * 40, "TOKEN={token}", "%00"])
async def test_another_token_is_none(query) -> None:
    session = LocalSession()
    token = session.opened("127.0.0.1", 8080).partition("=")[2]
    assert await status_of(session, request(query=query.replace("{token}", token))) == 401
    assert await status_of(session, request("/live", query=f"token={token}")) == 401
    assert await status_of(session, request(query=f"token={token}")) == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": f"http://{HOST}"}, 200),
        ({"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": f"http://{HOST}", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9090"}, 403),
        ({"origin": "null"}, 403),
        ({}, 403),
    ],
)
async def test_a_form_comes_from_the_page_itself(headers, status) -> None:
    session, cookie = await let_in()
    asked = Request("POST", "/lab", {"host": HOST, "cookie": cookie, **headers})
    assert await status_of(session, asked) == status


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    headers = dict(LocalSession().headers())
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
