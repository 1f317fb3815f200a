"""A real browser for tests of the page: Chromium, driven by ChromeDriver's plain HTTP (W3C WebDriver).

Found on PATH, or by ``KGPU_CHROMIUM`` and ``KGPU_CHROMEDRIVER``; tests are skipped with the reason where there is none.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.child import child
from tests.polling import holds

ANSWER_S: Final = 300
"""Seconds for one command, at the most: a look at thousands of GPUs takes long on a machine with much else to do."""
_STARTED: Final = re.compile(r"started successfully on port (\d+)")
_FLAGS: Final = (
    "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--force-color-profile=srgb",
    "--disable-lcd-text",
)  # fmt: skip
TAB: Final = "\ue004"
"""The key's name to WebDriver."""


def programs() -> tuple[str, str]:
    """Chromium and ChromeDriver."""
    browser = os.environ.get("KGPU_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    driver = os.environ.get("KGPU_CHROMEDRIVER") or shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip(f"no {'Chromium' if browser is None else 'ChromeDriver'} here (apt install chromium-driver)")
    return browser, driver


class Chromium:
    """One window. What a page asked for and what its console says is kept until it is asked for."""

    def __init__(self, port: int, browser: str, folder: Path) -> None:
        self._port = port
        # As root Chromium has no sandbox; the pages are this project's own.
        flags = [*_FLAGS, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        wanted = {
            "goog:chromeOptions": {"binary": browser, "args": flags},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
            "timeouts": {"script": ANSWER_S * 1000, "pageLoad": ANSWER_S * 1000},
        }
        self._path = ""
        self._path = f"/session/{self._ask('/session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def _ask(self, path: str, method: str = "POST", **body: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S + 60)
        with contextlib.closing(connection):
            connection.request(method, self._path + path, json.dumps(body) if method == "POST" else None)
            value = json.loads(connection.getresponse().read())["value"]
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{path}: {value['error']}: {value['message'][:2000]}")
        return value

    def close(self) -> None:
        self._ask("", "DELETE")

    def tools(self, command: str, **given: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("/goog/cdp/execute", cmd=command, params=given)

    def look(self, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """The size of the window in CSS pixels and the reader's wish for light or dark."""
        self.tools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Open a page and wait until all of it is there, its style too.

        ChromeDriver itself may return before, where the page's isolation (``Cross-Origin-Opener-Policy``) has it shown
        by another process than the page before it: on a busy machine one time in three.
        """
        self.evaluate("window.left = true")
        self._ask("/url", url=url)
        loaded = "!window.left && document.readyState === 'complete'"
        assert holds(lambda: self.evaluate(loaded), seconds=ANSWER_S), f"{url} is not loaded"

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of the page; a promise is waited for."""
        answer = self.tools("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression[:200]}: {answer['exceptionDetails']}"[:2000])
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, as somebody's finger does."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def picture(self, kind: str = "png") -> str:
        """What the window shows, as ``png`` or ``webp``, in base64."""
        return str(
            self.tools("Page.captureScreenshot", format=kind, **({"quality": 75} if kind == "webp" else {}))["data"]
        )

    def requests(self) -> list[str]:
        """The URLs that were asked for since the last look."""
        entries = [json.loads(one["message"])["message"] for one in self._ask("/se/log", type="performance")]
        urls = [one["params"] for one in entries if one["method"] == "Network.requestWillBeSent"]
        opened = [one["params"]["url"] for one in entries if one["method"] == "Network.webSocketCreated"]
        return [one["request"]["url"] for one in urls] + opened

    def console(self) -> list[str]:
        """Warnings and errors since the last look, also those of the Content Security Policy."""
        entries = self._ask("/se/log", type="browser")
        return [one["message"] for one in entries if one["level"] in {"SEVERE", "WARNING"}]


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """A browser that keeps all it writes in the folder; skips where there is none."""
    browser, driver = programs()
    env = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    words = [driver, "--port=0"]
    with child(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        assert process.stdout is not None
        port = next((int(found[1]) for line in process.stdout if (found := _STARTED.search(line))), 0)
        assert port, f"{driver} has ended before it listened"
        window = Chromium(port, browser, folder / "profile")
        try:
            yield window
        finally:
            window.close()
