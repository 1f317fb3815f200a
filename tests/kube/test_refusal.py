"""Details of refusals, which may be anything."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.kube.refusal import MAX_CAUSES, causes_of

BUDGET = {"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently"}


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (None, ()),
        ("none", ()),
        ({"causes": 7}, ()),
        ({"causes": [None, {"reason": 3}]}, (("", ""), ("", ""))),
        ({"causes": [BUDGET]}, ((BUDGET["reason"], BUDGET["message"]),)),
    ],
)
def test_causes_are_words_with_messages(details: Any, expected: tuple[tuple[str, str], ...]) -> None:
    assert causes_of(details) == expected


def test_many_causes_are_cut() -> None:
    assert len(causes_of({"causes": [BUDGET] * 100})) == MAX_CAUSES
