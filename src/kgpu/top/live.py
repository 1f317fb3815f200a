"""The live screen: draws after new readings or a key, and leaves the terminal as it found it, whatever happens.

The alternate screen and the terminal's settings are given back at the end, on an error, and while the program is
stopped with Ctrl-Z.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rich.text import Text

from kgpu.base.printable import counted
from kgpu.top import cells, draw
from kgpu.top.columns import DrawingStyle
from kgpu.top.plan import plan
from kgpu.top.rows import Screen, Wish
from kgpu.top.run import NodeWatch
from kgpu.top.terminal import Terminal
from kgpu.top.ui import HELP, Ui, at, press

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

MOST_OFTEN: Final = 0.25  # seconds between two drawings because of news
IDLE_PER_DRAWING: Final = 8.0  # with thousands of GPUs it is drawn more rarely


class LiveTop:
    """One run of the live screen over a ``NodeWatch`` that reads."""

    def __init__(
        self, console: Console, watch: NodeWatch, wish: Wish, look: DrawingStyle, *, interval: float,
        notes: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:  # fmt: skip
        self._console = console
        self._watch = watch
        self._look = look
        self._interval = interval
        self._notes = notes
        self._ui = Ui(wish=wish)
        self._screen: Screen | None = None
        self._cost = 0.0  # seconds of CPU of the last drawing
        self._dirty = asyncio.Event()

    async def run(self) -> None:
        """Run until the user ends it."""
        from rich.live import Live

        live = Live(console=self._console, screen=True, auto_refresh=False, transient=True, redirect_stdout=False,
                    redirect_stderr=False)  # fmt: skip
        with Terminal(self._typed) as terminal:
            reading = asyncio.create_task(self._watch.run(self._interval))
            news = asyncio.create_task(self._follow())
            with live, self._signals(live, terminal):
                try:
                    while not self._ui.quit:
                        self._dirty.clear()
                        self._draw(live)
                        if reading.done():
                            break
                        await self._dirty.wait()
                finally:
                    for task in (reading, news):
                        task.cancel()
            done = await asyncio.gather(reading, news, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, Exception):
                raise outcome

    async def _follow(self) -> None:
        """Redraw after new readings: they may come hundreds of times a second, and four drawings are enough."""
        while True:
            await self._watch.changed.wait()
            self._watch.changed.clear()
            self._screen = None
            self._dirty.set()
            await asyncio.sleep(max(MOST_OFTEN, self._cost * IDLE_PER_DRAWING))

    def _typed(self, pressed: list[str]) -> None:
        for key in pressed:
            screen = self._planned()
            before = self._ui
            self._ui = press(before, key, rows=len(screen.rows), height=self._height())
            if self._ui.wish != before.wish:
                self._screen = None
            if self._ui.refresh:
                self._watch.refresh()
        self._dirty.set()

    def _planned(self) -> Screen:
        if self._screen is None:
            self._screen = plan(self._watch.nodes.values(), self._ui.wish, self._watch.history, time.monotonic())
        return self._screen

    def _height(self) -> int:
        """Rows that are seen: the terminal's without two of summary, the head and the foot."""
        return max(1, self._console.size.height - 4 - len(self._trouble_and_notes()))

    def _trouble_and_notes(self) -> tuple[str, ...]:
        trouble = self._watch.trouble
        return (*([trouble.one_line()] if trouble else []), *self._notes())[:3]

    def _draw(self, live: Live) -> None:
        from rich.console import Group

        began = time.process_time()
        live.update(Group(*self.lines()), refresh=True)
        self._cost = time.process_time() - began

    def lines(self) -> list[Text]:
        """The whole screen."""
        width, height = self._console.size
        screen = self._planned()
        self._ui = ui = at(self._ui, rows=len(screen.rows), height=self._height())
        lines = draw.summary(screen, width, self._look, clock=time.strftime("%H:%M:%S"))
        lines += [Text(cells.fit(line, width), "yellow", no_wrap=True) for line in self._trouble_and_notes()]
        if ui.help:
            lines += _help(width)
        else:
            visible = screen.rows[ui.top : ui.top + self._height()]
            lines += draw.table(visible, ui.wish.view, width, self._look, marked=ui.cursor - ui.top)
            if not screen.rows:
                lines.append(Text(self._empty(), "dim", no_wrap=True))
        lines = lines[: height - 1]
        lines += [Text("")] * (height - 1 - len(lines))
        foot = Text(
            cells.fit(self._foot(screen), width), "reverse" if ui.typed is not None else "dim", no_wrap=True, end=""
        )
        for line in lines:
            line.truncate(width)
            line.end = "\n"
        return [*lines, foot]

    def _empty(self) -> str:
        if self._watch.rounds == 0 and self._watch.trouble is None:
            return "reading ..."
        wish = self._ui.wish
        return "nothing that the filter lets through; Esc shows all" if wish.words or wish.namespaces else "no GPUs"

    def _foot(self, screen: Screen) -> str:
        ui, wish = self._ui, self._ui.wish
        if ui.typed is not None:
            return f"filter: {ui.typed}_   Enter keeps it, Esc ends it"
        if ui.ordering:
            from kgpu.top.sorts import SORTS

            return "sort by " + ", ".join(f"{sort.letter} {sort.name}" for sort in SORTS.values())
        count = len(screen.rows)
        place = f"{ui.top + 1}-{min(count, ui.top + self._height())} of {count}" if count > self._height() else ""
        parts = [
            f"{wish.view.value} by {wish.sort}{' reversed' if wish.reverse else ''}",
            f"filter: {wish.words}" if wish.words else "",
            place,
            self._progress(),
            "h help  q end",
        ]
        return "  ".join(part for part in parts if part)

    def _progress(self) -> str:
        watch = self._watch
        if watch.waiting:
            return f"reading {counted(watch.waiting, 'node')}"
        return f"read in {watch.took:.1f} s" if watch.rounds else ""

    @contextlib.contextmanager
    def _signals(self, live: Live, terminal: Terminal) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._ui = replace(self._ui, quit=True)
            self._dirty.set()

        def stop() -> None:
            live.stop()
            terminal.restore()
            loop.remove_signal_handler(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGTSTP)  # here the program stands still until it is told to go on
            loop.add_signal_handler(signal.SIGTSTP, stop)
            terminal.take()
            live.start()
            self._dirty.set()

        handlers: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGINT: end, signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGWINCH: self._dirty.set,
            signal.SIGTSTP: stop,
        }  # fmt: skip
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)


def _help(width: int) -> list[Text]:
    left = max(len(key) for key, _ in HELP) + 2
    lines = [Text("Keys", "bold", no_wrap=True)]
    for key, text in HELP:
        for place, part in enumerate(textwrap.wrap(text, max(10, width - left))):
            line = Text(cells.fit(key if place == 0 else "", left), "bold", no_wrap=True)
            line.append(part, "not bold")
            lines.append(line)
    return lines
