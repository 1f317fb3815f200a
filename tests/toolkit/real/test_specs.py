"""What kgpu takes for a valid CDI spec is one for the engine's own library: a file that it refused would take every GPU
of the node away, and one that it can't read may end the engine itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hypothesis import Phase, given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.cdi import parse_spec
from tests.budget import tries
from tests.toolkit.real import rootfs
from tests.toolkit.real.conftest import Node

ENGINE_VERSIONS = ("0.3.0", "0.5.0", "0.7.0", "0.8.0", "1.0.0")  # what the pinned containerd knows
WORDS = st.sampled_from(["a", "ab", "nvidia.com", "x-1", "9a", "a-", "", "gpu", "é", "a b", ".."])
PATHS = st.sampled_from(["/dev/null", "/x", "relative", "", "/a/../b", "/with space", "//x", "/"])
NUMBERS = st.sampled_from([0, 1, -1, 255, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**64])
TEXTS = st.sampled_from(["", "A=1", "=1", "A", "A=", "A=b=c", "rwm", "rx", "c", "b", "z", "p", "u", "\n", "a/b", "."])

Fields = dict[str, Any]


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    """A mapping with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


NODES = st.builds(
    lambda path, rest: {"path": path, **rest},
    PATHS,
    some(hostPath=PATHS, type=TEXTS, major=NUMBERS, minor=NUMBERS, fileMode=NUMBERS, permissions=TEXTS, uid=NUMBERS, gid=NUMBERS),
)  # fmt: skip
MOUNTS = st.builds(
    lambda host, inside, rest: {"hostPath": host, "containerPath": inside, **rest},
    PATHS,
    PATHS,
    some(options=st.lists(TEXTS, max_size=2), type=TEXTS),
)
HOOKS = st.builds(
    lambda name, path, rest: {"hookName": name, "path": path, **rest},
    st.sampled_from(["createContainer", "poststop", "none", ""]),
    PATHS,
    some(args=st.lists(TEXTS, max_size=2), env=st.lists(TEXTS, max_size=2), timeout=NUMBERS),
)
EDITS = some(
    env=st.lists(TEXTS, max_size=2),
    deviceNodes=st.lists(NODES, max_size=2),
    mounts=st.lists(MOUNTS, max_size=2),
    hooks=st.lists(HOOKS, max_size=1),
    additionalGids=st.lists(NUMBERS, max_size=2),
    intelRdt=some(closID=TEXTS, l3CacheSchema=TEXTS, memBwSchema=TEXTS, enableCMT=st.booleans()),
)
NOTES = st.dictionaries(st.sampled_from(["a", "kgpu.dev/x", "", "a b", "-", "A/b/c", "UPPER.com/x"]), TEXTS, max_size=2)
DEVICES = st.builds(
    lambda name, edits, rest: {"name": name, "containerEdits": {"env": ["A=1"], **edits}, **rest},
    st.one_of(WORDS, st.sampled_from(["0", "0:1", "GPU-1", "a:"])),
    EDITS,
    some(annotations=NOTES),
)
SPECS = st.builds(
    lambda version, vendor, kind, devices, rest: {
        "cdiVersion": version, "kind": f"{vendor}/{kind}", "devices": devices, **rest,
    },
    st.sampled_from(ENGINE_VERSIONS),
    st.one_of(st.just("test.kgpu.dev"), WORDS),
    st.one_of(st.just("gpu"), WORDS),
    st.lists(DEVICES, min_size=1, max_size=2),
    some(annotations=NOTES, containerEdits=EDITS),
)  # fmt: skip


def accepted(spec: Fields) -> bool:
    try:
        parse_spec(json.dumps(spec))
    except ConfigError:
        return False
    return True


def accepted_specs() -> list[Fields]:
    """Different specs that kgpu accepts, each with a vendor of its own, so that no two are in conflict."""
    found: dict[str, Fields] = {}

    @given(spec=SPECS)
    @tries(5 * 1500, phases=[Phase.generate], database=None, derandomize=True)
    def collect(spec: Fields) -> None:
        text = json.dumps(spec, sort_keys=True)
        if text not in found and accepted(spec):
            vendor, _, kind = spec["kind"].partition("/")
            found[text] = {**spec, "kind": f"{vendor}{len(found)}/{kind}"}

    collect()
    return list(found.values())


def test_the_engine_takes_every_spec_that_kgpu_takes(node: Node) -> None:
    specs = accepted_specs()
    assert len(specs) > 50
    assert all(
        any(key in json.dumps(spec) for spec in specs) for key in ("deviceNodes", "hooks", "closID", "annotations")
    )
    made = {node.engine.specs / f"x{number}.json": spec for number, spec in enumerate(specs)}
    try:
        for path, spec in made.items():
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(spec))
            partial.rename(path)
        done = node.engine.run(rootfs.SHELL, "true", devices=["nvidia.com/gpu=0"])
        refused = [f"{error}\n{json.dumps(made[path])}" for path, error in errors(done.err, made)]
        assert not refused, "\n".join(refused[:8]) + f"\n{len(refused)} of {len(specs)}"
        assert done.code == 0, done.err
        assert node.engine.ctr("version").code == 0, "the engine has ended"
    finally:
        for path in made:
            path.unlink()


def errors(said: str, made: Mapping[Path, Fields]) -> Iterator[tuple[Path, str]]:
    """The files that the engine's library refused, with what it said of each."""
    for line in said.replace("\\n", "\n").splitlines():
        for path in made:
            if f"/{path.name}" in line:
                yield path, line[-400:]
