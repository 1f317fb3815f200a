"""Types are made ready before two threads read values of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import msgspec
import pytest

from kgpu.base import typed
from kgpu.base.typed import convert, decode

# A type of its own for each round, as each is read for the first time only once.
RACE = """
    import sys, threading, types
    from kgpu.base.typed import convert, decode

    FIELDS = "a: int = 0; b: list[str] = []; c: dict[str, int] = {}; d: "
    CLASSES = [f"class K{n}(msgspec.Struct): {FIELDS}{f'K{n - 1} | None = None' if n else 'str = str()'}" for n in range(8)]
    SOURCE = "\\n".join(["from __future__ import annotations", "import msgspec", *CLASSES])
    sys.setswitchinterval(1e-6)
    for number in range(60):
        module = types.ModuleType(f"made{number}")
        sys.modules[module.__name__] = module
        exec(SOURCE, module.__dict__)
        together, read = threading.Barrier(2), []
        ways = (
            lambda: convert({"a": 1, "d": {"a": 2, "d": None}}, module.K7),
            lambda: decode(b'{"a": 1, "d": {"a": 2, "d": null}}', module.K7),
        )
        def go(way):
            together.wait()
            read.append(way())
        threads = [threading.Thread(target=go, args=(way,)) for way in ways]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(read) == 2 and read[0] == read[1] and read[0].d.a == 2
"""


class Row(msgspec.Struct):
    name: str
    number: int = 0


def test_two_threads_read_a_type_that_is_new() -> None:
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(RACE)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_values_and_json() -> None:
    assert decode(b'{"name": "a", "number": 1}', Row) == convert({"name": "a", "number": 1}, Row) == Row("a", 1)
    assert decode('{"x": {"name": "a"}}', dict[str, Row]) == {"x": Row("a")}
    assert convert({"name": "a", "number": "1"}, Row, strict=False) == Row("a", 1)
    for wrong in ({"name": "a", "number": "1"}, {"number": 1}, []):
        with pytest.raises(msgspec.ValidationError):
            convert(wrong, Row)
    with pytest.raises(msgspec.DecodeError):
        decode(b"{", Row)


def test_what_others_have_written_is_read_or_is_none() -> None:
    nested = "[" * 100_000
    assert typed.read('{"size": 1}', dict[str, int]) == {"size": 1}
    assert [typed.read(text, dict[str, int]) for text in ("", "{", '{"a": "b"}', "\udc80", nested)] == [None] * 5
    assert [typed.read("[1]", list[int], most=most) for most in (2, 3)] == [None, [1]]
