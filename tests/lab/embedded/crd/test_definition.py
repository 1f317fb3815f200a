"""CRDs, good and bad: the answers are those that a real API server gave (``answers.json``)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.embedded.crd import real_answers
from tests.lab.embedded.crd.asking import Api
from tests.lab.embedded.crd.cases import SCHEMAS
from tests.lab.embedded.crd.definition_cases import DEFINITIONS

ANSWERS = real_answers.recorded()
# Refused here too, in other words.
OTHERWISE = {
    "libraries": "costs are not estimated, the format library is missing",
    "rule self.a.startsWith('a', 'b')": "a function of that name with so many parameters is unknown to the compiler",
}


@pytest.fixture(scope="module")
def api() -> Api:
    found = Api()
    for definition in SCHEMAS.values():
        found.install(definition)
    return found


@pytest.mark.parametrize(("label", "definition"), DEFINITIONS.items(), ids=list(DEFINITIONS))
def test_a_new_crd_is_answered_as_by_the_real_server(api: Api, label: str, definition: dict[str, Any]) -> None:
    found, expected = api.create(definition), ANSWERS[f"definition/{label}"]
    if label in OTHERWISE:
        assert found != expected, f"{label}: no longer different, {OTHERWISE[label]}"
        assert found["code"] == expected["code"]
    else:
        assert found == expected


def test_every_case_has_an_answer_and_every_answer_a_case() -> None:
    assert {name.removeprefix("definition/") for name in ANSWERS if name.startswith("definition/")} == set(DEFINITIONS)
    codes = [one["code"] for one in ANSWERS.values()]
    assert codes.count(201) >= 50
    assert codes.count(422) >= 100
