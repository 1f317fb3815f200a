"""Objects of custom kinds, created and changed: the answers are those that a real API server gave (``answers.json``)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.lab.embedded.crd import real_answers
from tests.lab.embedded.crd.asking import Api
from tests.lab.embedded.crd.cases import OBJECTS, SCHEMAS
from tests.lab.embedded.crd.update_cases import UPDATES

Raw = dict[str, Any]
MODES = ("Warn", "Strict")
ANSWERS = real_answers.recorded()


@pytest.fixture(scope="module")
def api() -> Api:
    """With all of ``SCHEMAS`` established."""
    found = Api()
    for definition in SCHEMAS.values():
        found.install(definition)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("plural", "label", "body"), OBJECTS, ids=[f"{row[0]}-{row[1]}" for row in OBJECTS])
def test_a_new_object_is_answered_as_by_the_real_server(
    api: Api, plural: str, label: str, body: Raw, mode: str
) -> None:
    found = api.create(real_answers.full(plural, body, "x"), validation=mode)
    assert found == ANSWERS[f"object/{plural}/{label}/{mode}"]


@pytest.mark.parametrize("number", range(len(UPDATES)), ids=[f"{row[0]}-{row[1]}" for row in UPDATES])
def test_a_change_is_answered_as_by_the_real_server(api: Api, number: int) -> None:
    plural, label, before, after, subresource = UPDATES[number]
    name = f"u{number}"
    made = api.create(real_answers.full(plural, before, name))
    assert made["code"] == 201, made
    old = made["object"]
    if "status" in before:
        old = api.update({**old, "status": before["status"]}, old, "status")["object"]
    unchanged = copy.deepcopy(old)
    found = api.update(real_answers.full(plural, after, name), old, subresource)
    assert found == ANSWERS[f"update/{plural}/{label}"]
    assert old == unchanged, "what is stored was changed in place"
