"""Unknown and repeated fields in bodies of every form: the words of the real server, from the embedded one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.lab.embedded.http import body_cases
from tests.lab.embedded.served import Server


def test_are_refused_or_warned_of_in_the_real_words(server: Server) -> None:
    def ask(method: str, path: str, text: str, media: str) -> tuple[int, Any, list[str]]:
        found = server.ask(method, path, text or None, media=media, User_Agent="tests")
        return found.code, found.value, found.warnings

    for case, answer in body_cases.play(ask, wait):
        assert answer == (case.code, case.message, case.warnings), case.label


def wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
