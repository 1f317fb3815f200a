"""Collections are deleted one by one, so that whoever asks can let others take their turn."""

from __future__ import annotations

import pytest

from kgpu.lab.embedded.core.model import DeleteOptions
from kgpu.lab.embedded.status import ApiError
from tests.lab.embedded.support import CALL, config_map, kind, make_core


def test_each_step_deletes_one() -> None:
    core = make_core()
    maps = kind(core, "configmaps")
    for name in "abc":
        core.create(maps, "default", config_map(name, labels={"x": "y"}), CALL)
    core.create(maps, "default", config_map("other"), CALL)
    steps = core.delete_collection(maps, "default", DeleteOptions(), CALL, labels="x=y")
    assert core.has(maps, "default", "a")
    assert next(steps).name == "a"
    assert not core.has(maps, "default", "a")
    assert core.has(maps, "default", "b")
    core.delete(maps, "default", "b", DeleteOptions(), CALL)  # by somebody else, meanwhile
    assert [one.name for one in steps] == ["b", "c"]
    assert [one.name for one in core.list(maps, "default").items] == ["other"]


def test_a_collection_that_is_refused_says_so() -> None:
    core = make_core()
    maps = kind(core, "configmaps")
    core.create(maps, "default", config_map("a"), CALL)
    with pytest.raises(ApiError) as caught:
        list(core.delete_collection(maps, "default", DeleteOptions(uid="another"), CALL))
    assert caught.value.code == 409
    assert core.has(maps, "default", "a")
