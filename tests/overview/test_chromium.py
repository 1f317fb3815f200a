"""The page in a real browser: sizes, colours, keys, updates, hostile names, and nothing asked of anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from kgpu.base.errors import UserError
from kgpu.overview.model import ToldReport
from kgpu.overview.port import FakeWorld
from kgpu.overview.run import serve
from kgpu.top.model import GpuNode
from kgpu.top.source import FakeSource
from tests.overview import axe
from tests.overview.chromium import TAB, Chromium, chromium
from tests.overview.making import finding, fleet, gpu, node
from tests.polling import holds

WAIT = 120.0
SHAPES = {0: (), 1: fleet(1, 1), 8: fleet(1), 128: fleet(16), 8000: fleet(1000)}
HOSTILE = (
    "<script>window.hurt=1</script>", "\"'><img src=x onerror=window.hurt=1>", "\u202egnp.evil\u2066", "x" * 253,
    "javascript:window.hurt=1", "</main></body><svg onload=window.hurt=1>",
)  # fmt: skip
FOCUSED = """(() => { const one = document.activeElement, style = getComputedStyle(one);
  return one === document.body ? null : [controls.indexOf(one), style.outlineStyle, parseFloat(style.outlineWidth)] })()"""
CONTROLS = """controls = [...document.querySelectorAll("a[href], button, input, summary")]
  .filter((one) => one.checkVisibility() && one.type !== "hidden"); controls.map((one) => one.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("chromium")) as window:
        yield window


@pytest.fixture
def window(browser: Chromium) -> Iterator[Chromium]:
    """The browser, in which nothing of what others have opened is left."""
    browser.open("about:blank")
    browser.look()
    browser.requests()
    browser.console()
    yield browser
    browser.open("about:blank")


def served(
    look: Callable[[FakeSource, str], None], nodes: Mapping[str, GpuNode], world: FakeWorld | None = None
) -> None:  # fmt: skip
    """Serve the page of these nodes while it is looked at, from a thread beside it; its link is for one browser."""

    async def run() -> None:
        source, stop = FakeSource(nodes), asyncio.Event()
        link: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(source, world or FakeWorld(), port=0, opened=link.set_result, stop=stop))
        try:
            waited: set[asyncio.Future[Any]] = {serving, link}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(look, source, link.result())
        finally:
            stop.set()
            await asyncio.wait_for(serving, WAIT)

    asyncio.run(run())


def named(*nodes: GpuNode) -> dict[str, GpuNode]:
    return {each.name: each for each in nodes}


def text(window: Chromium) -> str:
    return str(window.evaluate("document.body.innerText"))


def until(window: Chromium, expression: str) -> None:
    assert holds(lambda: window.evaluate(f"Boolean({expression})"), seconds=WAIT), (
        f"{expression}\n{text(window)[:3000]}"
    )


def wide(window: Chromium) -> list[str]:
    """What makes the window scroll sideways; nothing should."""
    if window.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        return []
    return list(
        window.evaluate("""[...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll")
      && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 200)).slice(0, 5)""")
    )


def settled(window: Chromium, link: str) -> None:
    """Nothing was asked of another origin, and nothing complains."""
    own = urlsplit(link).netloc
    assert [url for url in window.requests() if urlsplit(url).scheme == "http" and urlsplit(url).netloc != own] == []
    assert window.console() == []


@pytest.mark.parametrize("count", SHAPES)
def test_every_size_in_light_and_dark_wide_and_narrow(window: Chromium, count: int) -> None:
    report = ToldReport(findings=(finding("Node node-0", "its driver is gone", remedy=("kgpu doctor node node-0",)),))

    def look(_: FakeSource, link: str) -> None:
        window.open(link)
        said = f"{count} on" if count else "No GPU nodes"
        until(window, f"document.getElementById('totals')?.textContent.includes({said!r})")
        for scheme in ("light", "dark"):
            grounds = set()
            for width in (1280, 400):
                window.look(width=width, scheme=scheme)
                grounds.add(window.evaluate("getComputedStyle(document.body).backgroundColor"))
                assert wide(window) == []
                assert axe.violations(window) == [], f"{count} GPUs, {scheme}, {width} px"
            assert grounds == {"rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)"}
        settled(window, link)

    served(look, named(*SHAPES[count]), FakeWorld(report=report if count else None))


def test_names_do_nothing_but_stand_there(window: Chromium) -> None:
    nodes = [node(name, gpu(name, 0, f"ns/{name}", reason=name, action=name)) for name in HOSTILE]
    world = FakeWorld(
        report=ToldReport(findings=tuple(finding(f"Node {name}", name, remedy=(name,)) for name in HOSTILE))
    )

    def look(_: FakeSource, link: str) -> None:
        window.open(link)
        until(window, "document.querySelectorAll('#attention .attention > li').length >= 6")
        for width in (1280, 400):
            window.look(width=width)
            assert wide(window) == []
        assert axe.violations(window) == []
        assert "<script>window.hurt=1</script>" in text(window)
        assert "\u202e" not in text(window)  # it would turn the line round
        assert window.evaluate("window.hurt") is None
        assert window.evaluate("document.querySelectorAll('main script, main img, main svg[onload]').length") == 0
        settled(window, link)

    served(look, named(*nodes), world)


def test_all_of_it_is_there_without_a_script(window: Chromium) -> None:
    window.tools("Emulation.setScriptExecutionDisabled", value=True)
    try:

        def look(_: FakeSource, link: str) -> None:
            window.open(link)

            def there() -> bool:
                window.open(link.partition("?")[0])
                return "node-0" in text(window)

            assert holds(there, seconds=WAIT)
            assert "Reload for newer figures." in text(window)
            assert window.evaluate("document.getElementById('pause').checkVisibility()") is False
            assert "ml/train-0-0" in text(window)
            settled(window, link)

        served(look, named(*SHAPES[8]))
    finally:
        window.tools("Emulation.setScriptExecutionDisabled", value=False)


def test_every_control_is_reached_by_tab_and_is_seen(window: Chromium) -> None:
    report = ToldReport(findings=(finding(remedy=("kgpu status",)),))

    def look(_: FakeSource, link: str) -> None:
        window.open(link)
        until(window, "document.querySelector('.attention .copy')")
        window.evaluate("document.getElementById('pause').click(); document.activeElement.blur()")
        controls = window.evaluate(CONTROLS)
        reached = set()
        for _ in range(2 * len(controls)):
            window.press(TAB)
            if (at := window.evaluate(FOCUSED)) is None:
                break
            place, style, thick = at
            assert (style, thick) == ("solid", 3), f"focus is not seen on {controls[place]}"
            reached.add(place)
        assert [one for number, one in enumerate(controls) if number not in reached] == []

    served(look, named(*SHAPES[8]), FakeWorld(report=report))


def test_figures_change_while_focus_and_scroll_stay(window: Chromium) -> None:
    def look(source: FakeSource, link: str) -> None:
        window.look(height=400)
        window.open(link)
        until(window, "document.getElementById('totals')?.textContent.includes('8 on') && live.textContent === 'live'")
        window.evaluate("window.same = 1; [...document.querySelectorAll('#gpus a')].at(-1).focus(); 0")
        window.evaluate("scrollTo(0, 300)")
        before = window.evaluate("[scrollY, document.activeElement.textContent, document.activeElement.pathname]")
        window.evaluate("window.part = document.getElementById('gpus'); 0")
        assert before[0] == 300
        source.nodes["node-0"] = node("node-0", *(gpu("node-0", i, f"ml/train-0-{i}", busy=97.0) for i in range(8)))
        until(window, "document.getElementById('gpus').innerText.includes('97') && !part.isConnected")
        assert window.evaluate("same") == 1
        assert (
            window.evaluate("[scrollY, document.activeElement.textContent, document.activeElement.pathname]") == before
        )
        settled(window, link)

    served(look, named(*SHAPES[8]))


def test_what_is_not_read_any_more_is_grey_with_its_age(window: Chromium) -> None:
    def look(source: FakeSource, link: str) -> None:
        window.open(link)
        until(window, "document.getElementById('totals')?.textContent.includes('8 on')")
        source.nodes["node-0"] = UserError("node-0 does not answer", "an exporter", "kgpu status")
        until(window, "document.querySelectorAll('.card.stale').length === 8")
        until(window, r"/not read: figures are of \d+ s ago/.test(document.querySelector('.map').innerText)")
        colours = "['.card.stale', 'body'].map((one) => getComputedStyle(document.querySelector(one)).color)"
        grey, black = window.evaluate(colours)
        assert grey != black
        for scheme in ("light", "dark"):
            window.look(scheme=scheme)
            assert axe.violations(window) == []

    served(look, named(*SHAPES[8]))
