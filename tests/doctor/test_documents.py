"""Files of JSON cost memory for what may be there: values are counted first, and objects have a size."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from kgpu.doctor.sources import documents
from kgpu.doctor.sources.files import PathReading

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ml"}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}


def read(value: Any, name: str = "all.json") -> tuple[set[str], list[tuple[str, str]]]:
    """The names of what was found, and what was told."""
    reading = PathReading()
    reading.file(name, value if isinstance(value, bytes) else msgspec.json.encode(value))
    found = reading.finish()
    names = {name for _, name in found.pods} | set(found.nodes)
    return names, [(one.what, one.why) for one in found.missing if not one.slight]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_OBJECT", 200)


SHAPES: dict[str, Any] = {
    "an object": POD,
    "a list": {"kind": "List", "items": [POD, NODE]},
    "a list without kinds": {"kind": "PodList", "items": [{"metadata": POD["metadata"]}]},
    "an array": [POD, NODE],
    "lists in an array": [{"kind": "List", "items": [POD]}, {"kind": "List", "items": [NODE]}],
    "a long list in a list": {"kind": "List", "items": [{"kind": "List", "items": [POD] * 9}, NODE]},
    "a long array in an array": [[POD] * 9, NODE],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("small")
def test_every_shape_of_a_list_is_read_whatever_its_size(shape: str) -> None:
    names, told = read(SHAPES[shape])
    assert names == {"a", "n"} - ({"n"} if "Node" not in str(SHAPES[shape]) else set())
    assert told == []


@pytest.mark.usefixtures("small")
def test_an_object_larger_than_any_server_s_is_told_and_the_others_are_read() -> None:
    names, told = read([POD, {**NODE, "spec": {"x": "y" * 200}}])
    assert names == {"a"}
    assert told == [("item 2 of all.json", "an object of 273 bytes, where no API server takes more than 200")]


@pytest.mark.usefixtures("small")
def test_broken_json_is_called_that_whatever_its_size() -> None:
    names, told = read(b'{"kind": "Pod", "metadata": {"name": "a"}, "spec": "' + b"y" * 300)
    assert not names
    assert "it is not JSON" in told[0][1]


@pytest.mark.usefixtures("small")
def test_lists_within_each_other_end() -> None:
    value: Any = [POD] * 9
    for _ in range(documents.MAX_LISTS + 1):
        value = [value]
    assert read(value) == (set(), [("item 1 of all.json", f"more than {documents.MAX_LISTS} lists within each other")])


HOSTILE = {
    "objects": '"[" + "{}," * 12_000_000 + "{}]"',
    "numbers": '"{\\"kind\\": \\"Pod\\", \\"metadata\\": [" + "0," * 12_000_000 + "0]}"',
    "values after each other": '"{}" * 12_000_000',
    "arrays after a broken value": '"{\\n" + "[[],[]]\\n" * 3_000_000',
    "an object": '"{\\"kind\\": \\"Pod\\", \\"metadata\\": {" + ",".join(f"\\"{i}\\":0" for i in range(1_000_000)) + "}}"',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_tens_of_megabytes_of_small_values_do_not_become_gigabytes(kind: str) -> None:
    code = f"""
import resource
from kgpu.doctor.sources.files import PathReading
data = ({HOSTILE[kind]}).encode()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reading = PathReading()
reading.file("all.json", data)
found = reading.finish()
assert found.missing, "nothing is told"
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=500)
    assert int(done.stdout) < 400, f"{done.stdout} MiB"
