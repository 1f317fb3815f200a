"""Node specs: whatever is in a ``node.json`` or on a command line is a spec or an error in three parts."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.base.errors import LabError
from kgpu.lab.nodes import spec
from kgpu.lab.nodes.spec import MAX_BYTES, SPEC_FILE, NodeSpec, NodeTaint, free_names, load, mig_rows, parse_taint, save

WORD = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SPECS = st.builds(
    NodeSpec,
    name=WORD,
    profile=st.sampled_from(["hgx-h100", "l4", "/some/profile.yaml"]),
    gpus=st.none() | st.integers(1, 64),
    light=st.booleans(),
    labels=st.dictionaries(WORD, WORD, max_size=3),
    taints=st.lists(
        st.builds(NodeTaint, key=WORD, value=WORD, effect=st.sampled_from(["NoSchedule", "NoExecute"]))
    ).map(tuple),
    config=st.text(max_size=30),
    cpu=st.sampled_from(["", "4", "500m"]),
    memory=st.sampled_from(["", "1Gi", "64000000"]),
    pods=st.integers(1, 10_000),
    time_scale=st.floats(0.001, 1),
    agent=st.booleans(),
)


def read(text: str | bytes, folder: Path) -> NodeSpec:
    path = folder / SPEC_FILE
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return load(path)


T = TypeVar("T")


def unless_refused(make: Callable[[], T], about: str) -> T | None:
    """What is made; None when it is refused with an error about that."""
    try:
        return make()
    except LabError as error:
        problem = error
    assert about in problem.what
    return None


@given(one=SPECS)
def test_what_is_saved_is_loaded(one: NodeSpec, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "round"
    save(folder, one)
    assert load(folder / SPEC_FILE) == one


@given(raw=st.binary(max_size=200) | JSON.map(lambda data: json.dumps(data).encode()))
def test_any_bytes_are_a_spec_or_an_error(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(LabError) as caught:
        read(raw, tmp_path_factory.getbasetemp())  # none of these can have both a name and a profile
    assert SPEC_FILE in caught.value.what


@given(fields=st.dictionaries(st.sampled_from(NodeSpec.__struct_encode_fields__), JSON, max_size=6))
@example(fields={"name": ""})
@example(fields={"labels": {"": ""}})
def test_any_values_are_a_spec_or_an_error(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    one = unless_refused(lambda: read(json.dumps({"name": "n", "profile": "l4", **fields}), folder), SPEC_FILE)
    if one is not None:
        save(folder, one)
        assert load(folder / SPEC_FILE) == one


@given(text=st.text(max_size=40))
def test_any_text_is_a_taint_or_an_error(text: str) -> None:
    taint = unless_refused(lambda: parse_taint(text), "taint")
    if taint is None:
        return
    assert text in {f"{taint.key}={taint.value}:{taint.effect}", f"{taint.key}:{taint.effect}"}
    if unless_refused(lambda: NodeSpec(name="n", profile="l4", taints=(taint,)), "taint") is not None:
        assert taint.effect in {"NoSchedule", "PreferNoSchedule", "NoExecute"}
        assert taint.key
        assert set(taint.key) <= set(string.ascii_letters + string.digits + "-_./")


@given(text=st.text(max_size=30) | st.from_regex(r"(all|\d{1,2}):\dg\.\d{1,2}gb(\*[1-9])?", fullmatch=True))
def test_any_text_is_a_mig_layout_or_an_error(text: str) -> None:
    one = unless_refused(lambda: NodeSpec(name="n", profile="dgx-a100-80g", mig=(text,)), "MIG layout")
    if one is None:
        return
    rows = mig_rows(one, 8)
    gpu, _, rest = text.partition(":")
    name, _, times = rest.partition("*")
    expected = [name] * int(times or 1)
    assert rows == [(index, expected) for index in (range(8) if gpu == "all" else [int(gpu)])]


def test_mig_rows_of_a_gpu_come_together() -> None:
    one = NodeSpec(name="n", profile="dgx-a100-80g", mig=("1:3g.40gb", "all:1g.10gb*2"))
    assert mig_rows(one, 2) == [(0, ["1g.10gb"] * 2), (1, ["3g.40gb", "1g.10gb", "1g.10gb"])]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"name": ""}, "a node's name"),
        ({"name": "A"}, "a node's name"),
        ({"name": "../up"}, "a node's name"),
        ({"name": "a\n"}, "a node's name"),
        ({"name": "a" * 64}, "a node's name"),
        ({"labels": {"a b": "c"}}, "label"),
        ({"labels": {"a": "c\n"}}, "label"),
        ({"taints": (NodeTaint(key="a", effect="NoSchedul"),)}, "NoSchedule"),
        ({"taints": (NodeTaint(key="", effect="NoSchedule"),)}, "taint"),
        ({"cpu": "many"}, "cpu"),
        ({"cpu": "-1"}, "cpu"),
        ({"memory": "0"}, "memory"),
        ({"mig": ("0:1g.10gb",), "light": True}, "MIG layout"),
        ({"mig": ("0:1g.10gb",), "profile": "cpu"}, "MIG layout"),
        ({"profile": "cpu", "gpus": 2}, "CPU node"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(LabError, match=what):
        NodeSpec(**{"name": "n", "profile": "dgx-a100-80g", **fields})


@pytest.mark.parametrize("fields", [{"gpus": 0}, {"gpus": 65}, {"pods": 0}, {"time_scale": 0}, {"time_scale": 2}])
def test_numbers_out_of_range_in_a_file(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LabError, match=next(iter(fields))):
        read(json.dumps({"name": "n", "profile": "l4", **fields}), tmp_path)


def test_unknown_keys_are_errors_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(LabError, match='did you mean "profile"'):
        read('{"name": "n", "profil": "l4"}', tmp_path)
    with pytest.raises(LabError, match="unknown field"):
        read('{"name": "n", "profile": "l4", "`": 1}', tmp_path)


def test_files_that_are_none(tmp_path: Path) -> None:
    pipe, link, folder, large = (tmp_path / name for name in ("pipe", "link", "folder", "large"))
    os.mkfifo(pipe)
    link.symlink_to("nowhere")
    folder.mkdir()
    large.write_bytes(b" " * (MAX_BYTES + 1))
    (tmp_path / "deep").write_text("[" * 200_000)
    for path in (pipe, link, folder, large, tmp_path / "deep", tmp_path / "missing"):
        with pytest.raises(LabError, match=path.name):
            load(path)


@given(prefix=WORD, count=st.integers(1, 20), numbers=st.sets(st.integers(1, 15)))
def test_free_names_are_new_and_in_order(prefix: str, count: int, numbers: set[int]) -> None:
    taken = {f"{prefix}-{number}" for number in numbers}
    names = free_names(prefix, count, taken)
    found = [int(name.removeprefix(f"{prefix}-")) for name in names]
    assert not taken & set(names)
    assert found == sorted(set(range(1, count + 16)) - numbers)[:count]


def test_json_ready_data_is_what_the_file_has() -> None:
    one = NodeSpec(name="n", profile="l4", taints=(NodeTaint(key="a", effect="NoExecute"),))
    assert json.loads(json.dumps(spec.to_builtins(one))) == json.loads(msgspec.json.encode(one))
