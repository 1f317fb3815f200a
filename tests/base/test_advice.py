"""Records as one line: causes and expectations each in a sentence that can be read."""

from __future__ import annotations

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError

ERROR = ConfigError("ConfigMap a/b does not exist", "a ConfigMap whose keys are configurations", "make it")


def test_an_error_is_told_in_the_words_of_the_error() -> None:
    assert Advice.from_error(ERROR).one_line() == ERROR.one_line()


def test_a_cause_is_told_as_one() -> None:
    found = Advice(subject="", what="GPU 3 is withdrawn", why="its memory is broken")
    assert found.one_line() == "GPU 3 is withdrawn, because its memory is broken"
