"""Lists stay consistent over their pages, and watches begin where they are asked to."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import DeleteOptions
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.embedded.watching import ObjectWatch
from tests.lab.embedded.support import CALL, config_map, kind, make_core, pod

MERGE = "application/merge-patch+json"


@pytest.fixture
def core() -> ApiCore:
    made = make_core()
    for name in "abcde":
        made.create(kind(made, "configmaps"), "default", config_map(name, labels={"odd": str(name in "ace")}), CALL)
    return made


def names(core: ApiCore, **options: object) -> list[str]:
    return [stored.name for stored in core.list(kind(core, "configmaps"), **options).items]  # type: ignore[arg-type]


async def take(watch: ObjectWatch, count: int) -> list[tuple[str, str]]:
    found = []
    async with asyncio.timeout(60):
        for _ in range(count):
            item = await anext(watch)
            found.append((item.type, item.stored.obj["metadata"].get("name", "")))
    return found


def test_pages_show_one_moment(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    first = core.list(maps, limit=2)
    assert ([one.name for one in first.items], first.remaining) == (["a", "b"], 3)
    core.delete(maps, "default", "d", DeleteOptions(), CALL)
    core.create(maps, "default", config_map("bb"), CALL)
    core.patch(maps, "default", "c", MERGE, {"data": {"late": "1"}}, CALL)
    second = core.list(maps, limit=2, token=first.token)
    assert [one.name for one in second.items] == ["c", "d"]
    assert "late" not in second.items[0].obj["data"]
    third = core.list(maps, limit=2, token=second.token)
    assert ([one.name for one in third.items], third.token, third.remaining) == (["e"], "", None)
    assert first.version == second.version == third.version


def test_pages_with_selectors_do_not_count_the_rest(core: ApiCore) -> None:
    page = core.list(kind(core, "configmaps"), labels="odd=True", limit=2)
    assert ([one.name for one in page.items], page.remaining) == (["a", "c"], None)
    rest = core.list(kind(core, "configmaps"), labels="odd=True", limit=2, token=page.token)
    assert ([one.name for one in rest.items], rest.token) == (["e"], "")


def test_a_token_that_is_too_old_comes_with_another(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    first = core.list(maps, limit=2)
    core.create(maps, "default", config_map("bb"), CALL)
    core.store.expire()
    with pytest.raises(ApiError) as caught:
        core.list(maps, limit=2, token=first.token)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    assert caught.value.message.startswith("The provided continue parameter is too old to display a consistent list")
    token = caught.value.to_status()["metadata"]["continue"]
    assert names(core, limit=2, token=token) == ["bb", "c"]


def test_tokens_outlive_one_compaction_but_not_two(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    first = core.list(maps, limit=2)
    core.store.compact()
    assert names(core, limit=2, token=first.token) == ["c", "d"]
    core.create(kind(core, "secrets"), "default", {"metadata": {"name": "s"}}, CALL)
    core.store.compact()
    assert names(core, limit=2, token=first.token) == ["c", "d"]
    core.store.compact()
    with pytest.raises(ApiError) as caught:
        names(core, limit=2, token=first.token)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    again = core.list(maps, limit=2, token=caught.value.to_status()["metadata"]["continue"])
    assert ([one.name for one in again.items], again.remaining) == (["c", "d"], 1)
    assert again.version != first.version
    assert core.watch(maps, version=first.version).closed is False


@pytest.mark.parametrize("token", ["abc", "!", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiJhIn0", "ü"])
def test_tokens_that_are_nonsense(core: ApiCore, token: str) -> None:
    with pytest.raises(ApiError) as caught:
        names(core, limit=2, token=token)
    assert caught.value.code == 400
    assert caught.value.message.startswith("invalid continue token: ")


def test_what_a_resource_version_asks_for(core: ApiCore) -> None:
    maps, before = kind(core, "configmaps"), str(core.store.revision)
    core.delete(maps, "default", "a", DeleteOptions(), CALL)
    assert names(core, version=before, match="Exact") == ["a", "b", "c", "d", "e"]
    assert names(core, version=before, match="NotOlderThan") == names(core, version="0") == ["b", "c", "d", "e"]
    with pytest.raises(ApiError) as caught:
        names(core, version="99999999")
    now = core.store.revision
    assert (caught.value.code, caught.value.message) == (504, f"Timeout: Too large resource version: 99999999, current: {now}")  # fmt: skip
    with pytest.raises(ApiError) as broken:
        names(core, version="abc")
    wanted = 'invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax'
    assert (broken.value.code, broken.value.message) == (400, wanted)
    core.store.expire()
    with pytest.raises(ApiError) as old:
        names(core, version=before, match="Exact")
    assert (old.value.code, old.value.message) == (410, "The resourceVersion for the provided list is too old.")


def test_lists_by_name_namespace_and_node(core: ApiCore) -> None:
    pods = kind(core, "pods")
    for name, node in (("x", "n"), ("y", "m"), ("z", "n")):
        core.create(pods, "default", pod(name, nodeName=node), CALL)
    assert [one.name for one in core.list(pods, fields="spec.nodeName=n").items] == ["x", "z"]
    assert [one.name for one in core.list(pods, fields="spec.nodeName=n,metadata.name=z").items] == ["z"]
    assert core.list(pods, "other", fields="spec.nodeName=n").items == []
    assert names(core, fields="metadata.namespace=default,metadata.name=c") == ["c"]
    assert names(core, fields="metadata.name!=c") == ["a", "b", "d", "e"]
    page = core.list(pods, fields="spec.nodeName=n", limit=1)
    assert [one.name for one in core.list(pods, fields="spec.nodeName=n", limit=1, token=page.token).items] == ["z"]


async def test_watches_follow_a_selector(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    watch = core.watch(maps, "default", labels="odd=True", version=str(core.store.revision))
    core.patch(maps, "default", "b", MERGE, {"metadata": {"labels": {"odd": "True"}}}, CALL)
    core.patch(maps, "default", "b", MERGE, {"data": {"x": "1"}}, CALL)
    core.patch(maps, "default", "b", MERGE, {"metadata": {"labels": {"odd": "no"}}}, CALL)
    core.delete(maps, "default", "b", DeleteOptions(), CALL)
    core.delete(maps, "default", "a", DeleteOptions(), CALL)
    wanted = [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b"), ("DELETED", "a")]
    assert await take(watch, 4) == wanted
    late = core.watch(maps, "default", labels="odd=True", version=str(core.store.revision - 5))
    assert await take(late, 4) == wanted
    watch.close()
    late.close()
    assert len(core.store.table(maps.key).watching) == 0


async def test_a_watch_can_begin_with_what_is_there(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    plain = core.watch(maps, fields="metadata.name=c")
    assert await take(plain, 1) == [("ADDED", "c")]
    full = core.watch(maps, labels="odd=True", bookmarks=True, initial_events=True)
    assert await take(full, 3) == [("ADDED", "a"), ("ADDED", "c"), ("ADDED", "e")]
    core.delete(maps, "default", "e", DeleteOptions(), CALL)
    bookmark = await anext(full)
    assert bookmark.type == "BOOKMARK"
    assert bookmark.stored.obj["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert bookmark.encoded().endswith(b"}\n")
    assert await take(full, 1) == [("DELETED", "e")]


async def test_bookmarks_come_when_nothing_happens(core: ApiCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgpu.lab.embedded.watching.BOOKMARK_SECONDS", 0.01)
    watch = core.watch(kind(core, "configmaps"), version=str(core.store.revision), bookmarks=True)
    core.create(kind(core, "secrets"), "default", {"metadata": {"name": "s"}}, CALL)
    async with asyncio.timeout(60):
        item = await anext(watch)
    assert item.type == "BOOKMARK"
    assert item.stored.obj["metadata"]["resourceVersion"] == str(core.store.revision)


@pytest.mark.parametrize("version", ["1", "99999999"])
def test_watches_of_a_lost_past_or_another_life_are_410(core: ApiCore, version: str) -> None:
    core.store.expire()
    with pytest.raises(ApiError) as caught:
        core.watch(kind(core, "configmaps"), version=version)
    assert (caught.value.code, caught.value.message) == (410, f"too old resource version: {version} ({core.store.revision})")  # fmt: skip


def test_versions_that_are_no_numbers_are_refused_as_by_the_real_one(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    with pytest.raises(ApiError) as watched:
        core.watch(maps, version="abc")
    why = 'strconv.ParseUint: parsing "abc": invalid syntax'
    assert (watched.value.code, watched.value.message) == (500, f'resourceVersion: Invalid value: "abc": {why}')
    with pytest.raises(ApiError) as written:
        core.update(maps, "default", "a", config_map("a", resourceVersion="abc"), CALL)
    assert (written.value.code, written.value.message) == (500, why)
