"""Links inside a folder that stands for a root: kept in, followed to the end, circles refused."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.symlinks import MAX_LINKS, resolve_inside


def test_a_chain_has_a_bound(tmp_path) -> None:
    (tmp_path / "0").mkdir()
    for at in range(MAX_LINKS + 1):
        os.symlink(str(at), tmp_path / str(at + 1))
    assert resolve_inside(str(tmp_path), f"/{MAX_LINKS}") == "/0"
    assert resolve_inside(str(tmp_path), f"/{MAX_LINKS + 1}") is None


def test_the_root_itself_and_names_that_no_file_has(tmp_path) -> None:
    assert resolve_inside(str(tmp_path), "/") == "/"
    assert resolve_inside(str(tmp_path), "/../..") == "/"
    assert resolve_inside("/", "/dev/../dev/null") == "/dev/null"
    assert resolve_inside(str(tmp_path), "/a\0b") is None
    assert resolve_inside(str(tmp_path), "/" + "x" * 300) is None


PARTS = st.sampled_from(["a", "b", "c", "..", ".", ""])
TARGETS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "a/b", "b/c"]), st.tuples(st.booleans(), TARGETS), max_size=5))
def test_resolved_paths_are_in_the_tree_real_and_stay_what_they_are(tmp_path_factory, links) -> None:
    """Whatever the links say: a resolved path has no link left, is inside, and resolves to itself."""
    root = os.path.realpath(tmp_path_factory.mktemp("tree"))
    for place, (absolute, target) in sorted(links.items()):
        path = os.path.join(root, place)
        if os.path.islink(os.path.dirname(path)) or os.path.lexists(path):
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(f"/{target}" if absolute else target or ".", path)
    os.mkdir(os.path.join(root, "d"))
    for asked in ("/a", "/b", "/c", "/a/b", "/a/b/c", "/b/../d", "/d/../../../d", "/a/../b/./c"):
        found = resolve_inside(root, asked)
        if found is not None:
            assert resolve_inside(root, found) == found
            assert os.path.realpath(root + found) == os.path.normpath(root + found)
    assert resolve_inside(root, "/d/../../../d") == "/d"
