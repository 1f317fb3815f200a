"""Near misses, and what could have been said."""

from __future__ import annotations

from kgpu.base.suggest import did_you_mean, one_of


def test_what_is_near_is_meant_whatever_its_case() -> None:
    assert did_you_mean("Relicas", ("replicas", "other")) == 'did you mean "replicas"?'
    assert did_you_mean("nothing", ("replicas",)) == ""


def test_a_few_are_all_named_and_of_many_those_that_are_like_it() -> None:
    assert one_of("x", ["ml/train-0"]) == "ml/train-0"
    assert one_of("ml/trane", ["web/a", "ml/train"]) == "one of ml/train, web/a"
    many = [f"ml/web-{at}" for at in range(40)]
    assert one_of("ml/train", [*many, "ml/train-0", "ml/train-1"]).startswith(
        "one of 42 there are, such as ml/train-0, ml/train-1, "
    )


def test_names_that_are_anybodys_stay_on_their_line() -> None:
    assert "\x1b" not in one_of("x", ["\x1b[31m\nred"])
    assert len(one_of("x", ["y" * 5000])) <= 120
