"""The page in the cluster over a socket: who is let in by what, what he sees, and when that ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest

from kgpu.base.errors import KubeError
from kgpu.base.http import Address
from kgpu.overview.hosted import MOST_OF_ONE, host
from kgpu.overview.port import FakeWorld
from kgpu.overview.reviews import FakeReviews, Person
from kgpu.overview.serve import AT_ONCE, PagePace
from kgpu.overview.sign_in import RIGHTS_HOLD
from kgpu.overview.tokens import HOLDS
from kgpu.overview.views import STILL_HERE
from kgpu.top.source import FakeSource
from tests.overview.making import Outline, gpu, node

DOWN = KubeError("it is down", "an answer", "wait")
PEOPLE = {
    "tok-admin": Person(name="admin", groups=("system:masters",)),
    "tok-ann": Person(name="ann", extra=(("scopes", ("a",)),)),
    "tok-bob": Person(name="bob"),
    "tok-nobody": Person(name="nobody"),
}
SEES = {"admin": {"", "nodes"}, "ann": {"ml"}, "bob": {"web"}}


class Site:
    """The page, and a browser without a session yet."""

    def __init__(self, address: Address, reviews: FakeReviews, source: FakeSource) -> None:
        self.port, self.reviews, self.source = address.port, reviews, source
        self.host = f"127.0.0.1:{address.port}"

    async def connect(self, path: str, *headers: str, method: str = "GET", body: bytes = b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4 << 20)
        lines = (f"{method} {path} HTTP/1.1", *headers, *([] if any(h.startswith("Host:") for h in headers) else [f"Host: {self.host}"]))  # fmt: skip
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        return reader, writer

    async def ask(self, path: str, *headers: str, **more) -> tuple[int, dict[str, str], str]:
        reader, writer = await self.connect(path, *headers, **more)
        try:
            head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
        finally:
            writer.close()
        first, *rest = head.decode().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body.decode()

    async def as_(self, token: str, path: str = "/", *headers: str) -> tuple[int, dict[str, str], str]:
        return await self.ask(path, f"Authorization: Bearer {token}", *headers)

    async def post(self, path: str, fields: dict[str, str], *headers: str) -> tuple[int, dict[str, str], str]:
        body = urlencode(fields).encode()
        return await self.ask(path, f"Content-Length: {len(body)}", *headers, method="POST", body=body)

    @property
    def own(self) -> str:
        return f"Origin: http://{self.host}"

    async def sign_in(self, token: str, **fields: str) -> str:
        """The cookie."""
        status, headers, _ = await self.post("/sign-in", {"token": token, **fields}, self.own)
        assert status == 303
        return f"Cookie: {headers['Set-Cookie'].partition(';')[0]}"

    async def until_shown(self, token: str, words: str) -> str:
        async with asyncio.timeout(60):
            while words not in (html := (await self.as_(token))[2]):  # noqa: ASYNC110 - what a page shows
                await asyncio.sleep(0.02)
        return html


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    source = FakeSource({
        "alpha": node("alpha", gpu("alpha", 0, "ml/train", busy=50), gpu("alpha", 1)),
        "beta": node("beta", gpu("beta", 0, "web/serve")),
    })  # fmt: skip
    reviews = FakeReviews(people=dict(PEOPLE), sees={name: set(of) for name, of in SEES.items()})
    stop, opened = asyncio.Event(), asyncio.get_running_loop().create_future()
    served = host(
        source, FakeWorld(), reviews, address=Address("127.0.0.1", 0), health=None, opened=opened.set_result, stop=stop
    )
    task = asyncio.create_task(served)
    try:
        await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
        yield Site(opened.result(), reviews, source)
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)
    assert source.closed


@pytest.fixture
def quick(monkeypatch) -> None:
    """What is remembered holds for no time, and streams look at once: nothing has to be waited for."""
    for name in ("tokens.HOLDS", "tokens.REFUSED_HOLDS", "tokens.ASK_AGAIN", "sign_in.RIGHTS_HOLD", "views.SOONEST"):
        monkeypatch.setattr(f"kgpu.overview.{name}", 0.0)
    monkeypatch.setattr("kgpu.overview.views.STILL_HERE", 0.02)
    monkeypatch.setattr("kgpu.overview.serve.AT_ONCE", 1e9)


async def test_each_sees_what_the_api_server_lets_him_see() -> None:
    async with site() as found:
        html = await found.until_shown("tok-admin", "<dt>held</dt><dd>2")
        assert ("ml/train" in html, "web/serve" in html) == (True, True)
        ann, bob, nobody = [(await found.as_(f"tok-{name}"))[2] for name in ("ann", "bob", "nobody")]
        assert ("ml/train" in ann, "alpha" in ann, "web" in ann, "beta" in ann) == (True, True, False, False)
        assert ("web/serve" in bob, "beta" in bob, "ml/" in bob, "alpha" in bob) == (True, True, False, False)
        assert not [name for name in ("alpha", "beta", "ml/", "web/", "train") if name in nobody]
        for shown in (html, ann, bob, nobody):
            assert re.search(r"<dt>GPUs</dt><dd>3\b.*<dt>held</dt><dd>2\b", shown, re.DOTALL)
            Outline(shown)


@pytest.mark.parametrize("path", ["/?ns=web", "/?q=serve", "/?node=beta", "/?ns=web&q=serve&node=beta&sort=user"])
async def test_an_address_that_guesses_finds_nothing(path) -> None:
    async with site() as found:
        await found.until_shown("tok-admin", "web/serve")
        assert "<td>web/serve" in (await found.as_("tok-admin", path))[2].replace('<th scope="row">', "<td>")
        html = (await found.as_("tok-ann", path))[2]
        main = re.sub(r'href="[^"]*"', "", html.partition("<main")[2])  # a link of the page keeps what was asked
        assert not [name for name in ("web", "serve", "beta") if name in main]


@pytest.mark.parametrize(
    "headers",
    [
        (), ("Authorization: Bearer ",), ("Authorization: Bearer wrong",), ("Authorization: Basic dG9rLWFkbWlu",),
        ("Authorization: Bearer wrong", "Authorization: Bearer tok-admin"), ("Cookie: kgpu-overview=tok-admin",),
        ("X-Forwarded-User: admin", "X-Remote-User: admin", "X-Remote-Group: system:masters"),
        ("Impersonate-User: admin",), ('Cookie: kgpu-overview=\x00; a="',), ("X-Forwarded-Access-Token: tok-admin",),
    ],
)  # fmt: skip
async def test_nothing_else_lets_anybody_in(headers) -> None:
    async with site() as found:
        for path in ("/", "/live", "/nowhere"):
            status, _, body = await found.ask(path, *headers)
            assert (status, "GPUs</dt>" in body) == (401, False)
        assert (await found.ask("/style.css", *headers))[0] == 200
        assert (await found.ask("/lab", *headers))[0] == 401
    assert found.source.looks == 0, "nobody has looked"


async def test_a_header_with_nobodys_token_is_not_healed_by_a_cookie() -> None:
    async with site() as found:
        cookie = await found.sign_in("tok-ann")
        assert (await found.ask("/", cookie))[0] == 200
        assert (await found.ask("/", cookie, "Authorization: Bearer wrong"))[0] == 401


async def test_the_form_gives_a_cookie_that_no_script_and_no_other_site_has() -> None:
    async with site() as found:
        fields = {"token": " Bearer tok-ann\n", "view": "./?ns=ml&q=a"}
        status, headers, _ = await found.post("/sign-in", fields, found.own)
        assert (status, headers["Location"]) == (303, "./?q=a&ns=ml")
        assert re.fullmatch(r"kgpu-overview=[\w-]{43}; HttpOnly; SameSite=Strict", headers["Set-Cookie"])
        secure = await found.post("/sign-in", fields, found.own, "X-Forwarded-Proto: https")
        assert secure[1]["Set-Cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")
        assert "tok-ann" not in str(headers)
        cookie = "Cookie: " + headers["Set-Cookie"].partition(";")[0]
        html = (await found.ask("/", cookie))[2]
        assert ("as ann" in html, "Sign out" in html, "tok-ann" in html) == (True, True, False)
        assert "Sign out" not in (await found.as_("tok-ann"))[2]
        status, headers, _ = await found.post("/sign-out", {}, cookie, found.own)
        assert (status, "Max-Age=0" in headers["Set-Cookie"]) == (303, True)
        assert (await found.ask("/", cookie))[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Origin: {own}",), 303), (("Sec-Fetch-Site: same-origin", "Origin: http://proxy.example"), 303),
        (("Sec-Fetch-Site: cross-site", "Origin: {own}"), 403), (("Sec-Fetch-Site: same-site",), 403),
        (("Sec-Fetch-Site: none",), 403), (("Origin: http://evil.example",), 403), (("Origin: null",), 403), ((), 403),
        (("Origin: http://", "Host: "), 403), (("Origin: http://[", ), 403),
    ],
)  # fmt: skip
async def test_a_form_of_another_page_is_refused(headers, status) -> None:
    async with site() as found:
        sent = [header.replace("{own}", f"http://{found.host}") for header in headers]
        for path in ("/sign-in", "/sign-out"):
            assert (await found.post(path, {"token": "tok-ann"}, *sent))[0] == status


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 401), ({"token": ""}, 401), ({"token": "wrong"}, 401), ({"token": "a\r\nSet-Cookie: x=y"}, 401),
        ({"token": "x" * 21_000}, 413), ({"token": "é"}, 401), ({"a" + str(i): "" for i in range(20)}, 401),
        ({"token": "tok-ann", "view": "https://evil.example/?q=x\r\nSet-Cookie: a=b"}, 303),
    ],
)  # fmt: skip
async def test_what_a_form_can_hold_does_no_harm(fields, status) -> None:
    async with site() as found:
        answer = await found.post("/sign-in", fields, found.own)
        assert answer[0] == status
        if status == 303:
            assert answer[1]["Location"].startswith("./?q=x")
        else:
            assert "Set-Cookie" not in answer[1]
            assert not fields.get("token") or fields["token"] not in answer[2]


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with site() as found:
        assert (await found.as_("t" * 9000))[0] == 431


@pytest.mark.usefixtures("quick")
async def test_a_right_that_is_taken_away_ends_in_what_is_open_too() -> None:
    async with site() as found:
        await found.until_shown("tok-ann", "ml/train")
        reader, writer = await found.connect("/live", "Authorization: Bearer tok-ann")
        async with asyncio.timeout(60):
            while b"ml/train" not in await reader.readline():
                pass
            found.reviews.sees["ann"] = set()
            while b"event: page" not in await reader.readline():
                pass
            event = await reader.readuntil(b"\n\n")
        assert (b"ml/train" in event, b"alpha" in event, b"<dd>3" in event) == (False, False, True)
        found.reviews.sees["ann"] = {"ml"}
        async with asyncio.timeout(60):
            while b"ml/train" not in await reader.readline():
                pass
            del found.reviews.people["tok-ann"]
            while b"event: ended" not in await reader.readline():
                pass
            await reader.read()
        writer.close()
        assert (await found.as_("tok-ann"))[0] == 401


@pytest.mark.usefixtures("quick")
async def test_while_the_api_server_is_away_who_is_known_sees_sums_and_nobody_signs_in() -> None:
    async with site() as found:
        cookie = await found.sign_in("tok-ann")
        await found.until_shown("tok-ann", "ml/train")
        found.reviews.trouble = DOWN
        status, _, html = await found.ask("/", cookie)
        assert (status, "ml/train" in html, "alpha" in html) == (200, False, False)
        assert re.search(r"<dt>GPUs</dt><dd>3\b", html), "not 0"
        assert (await found.post("/sign-in", {"token": "tok-bob"}, found.own))[0] == 503
        status, headers, body = await found.as_("tok-bob")
        assert (status, headers["Retry-After"], "it is down" in body) == (503, "10", False)
        found.reviews.trouble = None
        assert "ml/train" in (await found.ask("/", cookie))[2]


async def test_a_slow_api_server_holds_up_nobody_who_is_known() -> None:
    async with site() as found:
        await found.until_shown("tok-ann", "ml/train")
        found.reviews.slow = asyncio.Event()
        late = asyncio.create_task(found.as_("tok-bob"))
        assert (await found.as_("tok-ann"))[0] == 200
        assert not late.done()
        found.reviews.slow.set()
        assert (await late)[0] == 200


async def test_rights_that_are_not_told_in_time_are_none(monkeypatch) -> None:
    monkeypatch.setattr("kgpu.overview.sign_in.ASKED_WITHIN", 0.05)
    async with site() as found:
        await found.until_shown("tok-ann", "ml/train")
        assert (await found.as_("tok-bob"))[0] == 200
        found.reviews.people["tok-carl"] = Person(name="carl")
        found.reviews.slow_about = "carl"
        status, _, html = await found.as_("tok-carl")
        assert (status, "hidden 1" in html, "alpha" in html) == (200, True, False)


async def test_one_person_leaves_room_for_others() -> None:
    async with site() as found:
        streams = [await found.connect("/live", "Authorization: Bearer tok-ann") for _ in range(MOST_OF_ONE)]
        for reader, _ in streams:
            await reader.readuntil(b"retry: 3000\n\n")
        status, headers, _ = await found.as_("tok-ann", "/live")
        assert (status, headers["Retry-After"]) == (503, "30")
        reader, other = await found.connect("/live", "Authorization: Bearer tok-bob")
        assert b" 200 " in await reader.readline()
        for _, writer in (*streams, (reader, other)):
            writer.close()


async def test_ten_slow_viewers_hold_nobody_up(monkeypatch) -> None:
    monkeypatch.setattr("kgpu.overview.views.SOONEST", 0.0)
    async with site() as found:
        slow = [await found.connect("/live", f"Authorization: Bearer tok-{name}") for name in ("admin", "nobody") * 5]
        found.source.nodes["alpha"] = node("alpha", *(gpu("alpha", index, "ml/later") for index in range(8)))
        await found.until_shown("tok-ann", "ml/later")
        for _, writer in slow:
            writer.transport.abort()


async def test_a_list_is_downloaded_by_the_same_rights() -> None:
    async with site() as found:
        await found.until_shown("tok-admin", "<dt>held</dt><dd>2")
        status, headers, body = await found.as_("tok-ann", "/list?list=gpus&as=csv")
        assert (status, headers["Content-Disposition"]) == (200, 'attachment; filename="gpus.csv"')
        assert ("ml/train" in body, "web" in body, "beta" in body, body.count("\r\n")) == (True, False, False, 4)
        for path in ("/list", "/list?list=secrets&as=csv", "/list?list=gpus&as=exe", '/list?list=gpus&as=csv"'):
            assert (await found.as_("tok-ann", path))[0] == 404
        assert (await found.ask("/list?list=gpus&as=csv"))[0] == 401


async def test_one_gathering_serves_all(monkeypatch) -> None:
    monkeypatch.setattr("kgpu.overview.gather.INTERVAL", 3600.0)  # no round of its own comes in between
    async with site() as found:
        await found.until_shown("tok-admin", "ml/train")
        looks = found.source.looks
        for token in ("tok-ann", "tok-bob", "tok-nobody"):
            await found.as_(token)
        assert found.source.looks - looks <= len(found.source.nodes) * 2


def test_what_is_remembered_and_how_long_a_page_sleeps_is_less_than_a_minute() -> None:
    """A right, or a token, is asked about when a stream wakes for the first time after its answer is too old."""
    assert max(HOLDS, RIGHTS_HOLD) + STILL_HERE < 60


def test_pages_of_one_person_are_counted() -> None:
    now = [0.0]
    pace = PagePace(lambda: now[0])
    assert [pace.allows("ann") for _ in range(AT_ONCE + 1)] == [*[True] * AT_ONCE, False]
    assert pace.allows("bob")
    assert all(pace.allows("") for _ in range(2 * AT_ONCE))
    now[0] = 1.0
    assert [pace.allows("ann"), pace.allows("ann")] == [True, False]


async def test_no_token_is_in_a_log(caplog) -> None:
    caplog.set_level("DEBUG")
    async with site() as found:
        await found.sign_in("tok-ann")
        await found.as_("tok-bob")
        found.reviews.trouble = DOWN
        await found.as_("tok-secret")
    assert "nobody can sign in: it is down" in caplog.text
    assert "tok-" not in caplog.text
