"""Policies are asked, written and checked as the real server does it: its answers are those in ``answers.json``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.embedded import served
from tests.lab.embedded.policy import play, real_answers
from tests.lab.embedded.policy.cases import Ask, Raw
from tests.lab.embedded.served import Server

RECORDED = real_answers.recorded()


def call(server: Server, ask: Ask) -> tuple[int, Raw, list[str]]:
    headers = {**server.headers(), "Content-Type": ask.media}
    if ask.user:
        headers["Impersonate-User"] = ask.user
    body = json.dumps(ask.body) if ask.body is not None else None
    with contextlib.closing(server.connect()) as connection:
        connection.request(ask.method, ask.path, body, headers)
        found = connection.getresponse()
        raw = found.read()
        return found.status, real_answers.decoded(raw), real_answers.warnings_of(found.headers.get_all("Warning") or [])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    with served.running(tmp_path_factory.mktemp("api")) as server:
        yield play.everything(lambda ask: call(server, ask))


@pytest.mark.parametrize("name", RECORDED)
def test_it_answers_as_the_real_server(answers: Raw, name: str) -> None:
    assert answers[name] == RECORDED[name]


def test_every_case_has_an_answer_and_every_answer_a_case(answers: Raw) -> None:
    assert answers.keys() == RECORDED.keys()
    codes = [one["code"] for name, one in RECORDED.items() if name.startswith("ask/")]
    assert codes.count(422) >= 100
    assert sum(code < 300 for code in codes) >= 60
    checked = [one for name, one in RECORDED.items() if name.startswith("check/")]
    assert sum("expressionWarnings" in one["typeChecking"] for one in checked) >= 10


def test_the_answers_stand_in_order() -> None:
    text = Path(real_answers.ANSWERS).read_text()
    assert text == json.dumps(RECORDED, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
