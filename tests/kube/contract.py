"""What every ``KubeApi`` promises. The fake passes it always, the real client where there is a cluster.

A test module subclasses ``Contract`` and gives the ``api`` and ``place`` fixtures.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from kgpu.kube.conditions import NodeConditionWriter
from kgpu.kube.port import (
    CONFIG_MAPS,
    NODES,
    PODS,
    Change,
    KubeApi,
    KubeRefusedError,
    Listing,
    Object,
    Patch,
    Selector,
    WatchEvent,
    name_of,
    version_of,
)


@dataclass(frozen=True)
class Place:
    """Where a test may write: a namespace that exists, and names of its own."""

    namespace: str
    prefix: str

    def config_map(self, name: str, data: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> Object:
        metadata: Object = {"name": f"{self.prefix}-{name}", "namespace": self.namespace}
        if labels:
            metadata["labels"] = labels
        return {"metadata": metadata, "data": data or {}}


async def take(events: AsyncIterator[WatchEvent], count: int, seconds: float = 20) -> list[tuple[Change, str]]:
    """The next changes as (what, object's name), bookmarks left out."""
    found: list[tuple[Change, str]] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            event = await anext(events)
            if event.change is not Change.BOOKMARK:
                found.append((event.change, name_of(event.object)))
    return found


class TryingContract:
    """Of clients that can ask what the API server would say."""

    async def test_trying_makes_nothing_and_says_what_creating_would(self, api: Any, place: Place) -> None:
        wanted = place.config_map("tried", {"key": "value"})
        assert (await api.try_create(CONFIG_MAPS, wanted))["data"] == {"key": "value"}
        assert await api.get(CONFIG_MAPS, name_of(wanted), namespace=place.namespace) is None
        await api.create(CONFIG_MAPS, wanted)
        with pytest.raises(KubeRefusedError) as caught:
            await api.try_create(CONFIG_MAPS, wanted)
        assert caught.value.conflict
        assert await api.delete(CONFIG_MAPS, name_of(wanted), namespace=place.namespace)


class StrictContract:
    """Of clients of an API server that knows the fields there are."""

    async def test_trying_refuses_a_field_that_there_is_not(self, api: Any, place: Place) -> None:
        with pytest.raises(KubeRefusedError) as caught:
            await api.try_create(CONFIG_MAPS, {**place.config_map("tried", {}), "dat": {"key": "value"}})
        assert (caught.value.code, 'strict decoding error: unknown field "dat"' in caught.value.message) == (400, True)


class Contract:
    @pytest.fixture
    def prefix(self) -> str:
        return f"kgpu-test-{uuid.uuid4().hex[:8]}"

    async def test_created_objects_can_be_got_and_deleted(self, api: KubeApi, place: Place) -> None:
        wanted = place.config_map("a", {"key": "value"})
        name = name_of(wanted)
        assert await api.get(CONFIG_MAPS, name, namespace=place.namespace) is None
        await api.create(CONFIG_MAPS, wanted)
        found = await api.get(CONFIG_MAPS, name, namespace=place.namespace)
        assert found is not None
        assert (found["apiVersion"], found["kind"], found["data"]) == ("v1", "ConfigMap", {"key": "value"})
        assert version_of(found)
        assert await api.delete(CONFIG_MAPS, name, namespace=place.namespace) is True
        assert await api.delete(CONFIG_MAPS, name, namespace=place.namespace) is False
        assert await api.get(CONFIG_MAPS, name, namespace=place.namespace) is None

    async def test_creating_twice_is_a_conflict(self, api: KubeApi, place: Place) -> None:
        await api.create(CONFIG_MAPS, place.config_map("a"))
        with pytest.raises(KubeRefusedError) as caught:
            await api.create(CONFIG_MAPS, place.config_map("a"))
        assert caught.value.conflict
        assert caught.value.reason == "AlreadyExists"

    async def test_deleting_can_insist_on_one_uid(self, api: KubeApi, place: Place) -> None:
        made = await api.create(CONFIG_MAPS, place.config_map("a"))
        with pytest.raises(KubeRefusedError) as caught:
            await api.delete(CONFIG_MAPS, name_of(made), namespace=place.namespace, uid=str(uuid.uuid4()))
        assert caught.value.conflict
        uid = made["metadata"]["uid"]
        assert await api.delete(CONFIG_MAPS, name_of(made), namespace=place.namespace, uid=uid) is True
        assert await api.get(CONFIG_MAPS, name_of(made), namespace=place.namespace) is None

    async def test_finalizers_hold_an_object_until_they_are_gone(self, api: KubeApi, place: Place) -> None:
        obj = place.config_map("a")
        obj["metadata"]["finalizers"] = ["kgpu.dev/test"]
        await api.create(CONFIG_MAPS, obj)
        assert await api.delete(CONFIG_MAPS, name_of(obj), namespace=place.namespace) is True
        held = await api.get(CONFIG_MAPS, name_of(obj), namespace=place.namespace)
        assert held is not None
        assert held["metadata"]["deletionTimestamp"]
        await api.patch(CONFIG_MAPS, name_of(obj), {"metadata": {"finalizers": None}}, namespace=place.namespace)
        assert await api.get(CONFIG_MAPS, name_of(obj), namespace=place.namespace) is None

    async def test_bindings_and_the_grace_of_pods(self, api: KubeApi, place: Place) -> None:
        name, node = f"{place.prefix}-pod", f"{place.prefix}-node"
        # Its scheduler is nobody, and so the pod waits for the test; its node is not there, and so nobody runs it.
        spec = {
            "schedulerName": "nobody", "terminationGracePeriodSeconds": 100,
            "containers": [{"name": "c", "image": "registry.invalid/none"}],
        }  # fmt: skip
        await api.create(PODS, {"metadata": {"name": name, "namespace": place.namespace}, "spec": spec})
        binding = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": place.namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }  # fmt: skip
        await api.create(PODS, binding, subresource="binding")
        bound = await api.get(PODS, name, namespace=place.namespace)
        assert bound is not None
        assert bound["spec"]["nodeName"] == node
        with pytest.raises(KubeRefusedError) as caught:
            await api.create(PODS, binding, subresource="binding")
        assert caught.value.conflict
        assert await api.delete(PODS, name, namespace=place.namespace) is True
        going = await api.get(PODS, name, namespace=place.namespace)
        # Only what nobody collects meanwhile can be looked at: a pod garbage collector removes pods of no node.
        if going is not None:
            assert going["metadata"]["deletionGracePeriodSeconds"] == 100
        await api.delete(PODS, name, namespace=place.namespace, grace=0)
        assert await api.get(PODS, name, namespace=place.namespace) is None

    async def test_lists_select_by_name_and_label_and_know_their_kind(self, api: KubeApi, place: Place) -> None:
        for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
            await api.create(CONFIG_MAPS, place.config_map(name, labels={"colour": colour, "test": place.prefix}))

        async def names(selector: Selector) -> list[str]:
            listing = await api.list(CONFIG_MAPS, namespace=place.namespace, selector=selector)
            assert listing.resource_version
            assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for item in listing.items)
            return sorted(name_of(item).removeprefix(place.prefix) for item in listing.items)

        mine = ("test", place.prefix)
        assert await names(Selector(labels=(mine,))) == ["-a", "-b", "-c"]
        assert await names(Selector(labels=(mine, ("colour", "red")))) == ["-a", "-c"]
        assert await names(Selector.named(f"{place.prefix}-b")) == ["-b"]
        assert await names(Selector.named(f"{place.prefix}-x")) == []

    async def test_apply_makes_changes_and_takes_back_what_it_owned(self, api: KubeApi, place: Place) -> None:
        made = await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "1", "y": "1"}), manager="one")
        assert made["data"] == {"x": "1", "y": "1"}
        again = await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "1", "y": "1"}), manager="one")
        assert version_of(again) == version_of(made), "applying the same changes nothing"
        both = await api.apply(CONFIG_MAPS, place.config_map("a", {"y": "2", "z": "2"}), manager="two")
        assert both["data"] == {"x": "1", "y": "2", "z": "2"}, "applying takes fields over"
        left = await api.apply(CONFIG_MAPS, place.config_map("a", {}), manager="one")
        assert left["data"] == {"y": "2", "z": "2"}, "what only one manager had goes with it"

    async def test_apply_without_force_is_refused_where_another_has_another_value(
        self, api: KubeApi, place: Place
    ) -> None:
        await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "1"}), manager="one")
        same = await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "1"}), manager="two", force=False)
        assert same["data"] == {"x": "1"}, "the same value is no conflict"
        with pytest.raises(KubeRefusedError) as caught:
            await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "2"}), manager="two", force=False)
        assert caught.value.conflict
        await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "2"}), manager="two")
        left = await api.apply(CONFIG_MAPS, place.config_map("a", {}), manager="one")
        assert left["data"] == {"x": "2"}, "who lost a field to force does not remove it"

    async def test_a_brief_answer_to_apply_says_which_object_in_which_version(self, api: KubeApi, place: Place) -> None:
        brief = dataclasses.replace(CONFIG_MAPS, metadata_only=True)
        config_map = place.config_map("a", {"x": "1"})
        made = await api.apply(brief, config_map, manager="one")
        found = await api.get(CONFIG_MAPS, name_of(config_map), namespace=place.namespace)
        assert found is not None
        assert (name_of(made), version_of(made)) == (name_of(config_map), version_of(found))
        with pytest.raises(KubeRefusedError, match="conflict") as caught:
            await api.apply(brief, place.config_map("a", {"x": "2"}), manager="two", force=False)
        assert caught.value.conflict

    async def test_who_changes_a_field_takes_it_from_its_manager(self, api: KubeApi, place: Place) -> None:
        await api.apply(CONFIG_MAPS, place.config_map("a", {"x": "1", "y": "1"}), manager="one")
        name = f"{place.prefix}-a"
        await api.patch(CONFIG_MAPS, name, {"data": {"x": "2"}}, namespace=place.namespace)
        found = await api.get(CONFIG_MAPS, name, namespace=place.namespace)
        assert found is not None
        entries = [entry for entry in found["metadata"]["managedFields"] if entry["manager"] == "one"]
        assert [set(entry["fieldsV1"]["f:data"]) - {"."} for entry in entries] == [{"f:y"}]

    async def test_a_patch_may_insist_on_the_version(self, api: KubeApi, place: Place) -> None:
        made = await api.create(CONFIG_MAPS, place.config_map("a", {"x": "1"}))
        change: Object = {"metadata": {"resourceVersion": version_of(made)}, "data": {"x": "2"}}
        found = await api.patch(CONFIG_MAPS, name_of(made), change, namespace=place.namespace)
        assert found["data"] == {"x": "2"}
        with pytest.raises(KubeRefusedError) as caught:
            await api.patch(CONFIG_MAPS, name_of(made), change, namespace=place.namespace)
        assert caught.value.conflict

    async def test_lists_project_and_select_by_a_label_that_is_there(self, api: KubeApi, place: Place) -> None:
        for name, labels in (("a", {"mark": "1"}), ("b", {"mark": ""}), ("c", {})):
            await api.create(CONFIG_MAPS, place.config_map(name, {"k": "v"}, {**labels, "test": place.prefix}))
        selector = Selector(labels=(("test", place.prefix),), has=("mark",))

        def lean(obj: Object) -> Object:
            return {"metadata": {"name": name_of(obj), "resourceVersion": version_of(obj)}, "of": obj["kind"]}

        listing = await api.list(CONFIG_MAPS, namespace=place.namespace, selector=selector, project=lean)
        assert sorted(name_of(item).removeprefix(place.prefix) for item in listing.items) == ["-a", "-b"]
        assert {(item["of"], "data" in item) for item in listing.items} == {("ConfigMap", False)}

    async def test_metadata_alone_is_the_same_kind(self, api: KubeApi, place: Place) -> None:
        lean = dataclasses.replace(CONFIG_MAPS, metadata_only=True)
        assert lean == CONFIG_MAPS
        await api.create(CONFIG_MAPS, place.config_map("a", {"k": "v"}, {"mark": "1"}))
        selector = Selector.named(f"{place.prefix}-a")
        listing = await api.list(lean, namespace=place.namespace, selector=selector)
        (found,) = listing.items
        assert (found["apiVersion"], found["kind"], found["metadata"]["labels"]["mark"]) == ("v1", "ConfigMap", "1")
        events = api.watch(lean, listing.resource_version, namespace=place.namespace, selector=selector)
        async with contextlib.aclosing(events) as open_events:  # type: ignore[type-var]
            await api.delete(CONFIG_MAPS, f"{place.prefix}-a", namespace=place.namespace)
            assert await take(open_events, 1) == [(Change.DELETED, f"{place.prefix}-a")]

    async def test_the_server_says_what_it_serves(self, api: KubeApi, place: Place) -> None:
        await api.create(CONFIG_MAPS, place.config_map("a"))
        served = await api.discover()  # type: ignore[attr-defined]
        assert served.version >= (1, 30)
        assert CONFIG_MAPS in served.resources

    async def test_managed_fields_tell_who_applied_which_label(self, api: KubeApi, place: Place) -> None:
        await api.apply(CONFIG_MAPS, place.config_map("a", labels={"mine": "1", "a.b/c": "2"}), manager="one")
        found = await api.get(CONFIG_MAPS, f"{place.prefix}-a", namespace=place.namespace)
        assert found is not None
        entry = next(entry for entry in found["metadata"]["managedFields"] if entry["manager"] == "one")
        assert entry["operation"] == "Apply"
        assert {"f:mine", "f:a.b/c"} <= set(entry["fieldsV1"]["f:metadata"]["f:labels"])

    async def test_apply_with_a_uid_does_not_make_an_object(self, api: KubeApi, place: Place) -> None:
        obj = place.config_map("a")
        obj["metadata"]["uid"] = str(uuid.uuid4())
        with pytest.raises(KubeRefusedError) as caught:
            await api.apply(CONFIG_MAPS, obj, manager="one")
        assert caught.value.conflict
        assert await api.get(CONFIG_MAPS, f"{place.prefix}-a", namespace=place.namespace) is None

    async def test_merge_patches_remove_with_null_and_miss_nothing_else(self, api: KubeApi, place: Place) -> None:
        await api.create(CONFIG_MAPS, place.config_map("a", {"x": "1", "y": "1"}))
        change: Object = {"data": {"x": None, "z": "3"}}
        found = await api.patch(CONFIG_MAPS, f"{place.prefix}-a", change, namespace=place.namespace)
        assert found["data"] == {"y": "1", "z": "3"}
        with pytest.raises(KubeRefusedError) as caught:
            await api.patch(CONFIG_MAPS, f"{place.prefix}-x", change, namespace=place.namespace)
        assert caught.value.code == 404

    async def test_conditions_merge_by_type_in_the_status(self, api: KubeApi, place: Place) -> None:
        name = f"{place.prefix}-node"
        await api.create(NODES, {"metadata": {"name": name}})
        try:
            for kind, status in (("One", "True"), ("Two", "True"), ("One", "False")):
                change = {"status": {"conditions": [{"type": kind, "status": status}]}}
                await api.patch(NODES, name, change, subresource="status", kind=Patch.STRATEGIC)
            found = await api.get(NODES, name)
            assert found is not None
            seen = {row["type"]: row["status"] for row in found["status"]["conditions"]}
            assert (seen["One"], seen["Two"]) == ("False", "True")
        finally:
            await api.delete(NODES, name)

    async def test_a_condition_and_an_annotation_are_applied_together_and_go_together(
        self, api: KubeApi, place: Place
    ) -> None:
        """Also where a manager that knows of the condition alone comes after one that knows of both, as an older one."""
        name = f"{place.prefix}-said"
        await api.create(NODES, {"metadata": {"name": name, "annotations": {"example.com/of": "another"}}})
        said = NodeConditionWriter(api, node=name, kind="example.com/Well", manager="contract")

        async def there() -> tuple[dict[str, str], list[str]]:
            node = await api.get(NODES, name)
            assert node is not None
            found = {key: text for key, text in node["metadata"].get("annotations", {}).items() if "example.com" in key}
            rows = node.get("status", {}).get("conditions", [])
            return found, [row["status"] for row in rows if row["type"] == "example.com/Well"]

        other = {"example.com/of": "another"}
        try:
            await said.write("False", "Ill", "one", annotations={"example.com/data": "1"})
            assert await there() == ({"example.com/data": "1", **other}, ["False"])
            await said.write("False", "Ill", "two", annotations={"example.com/data": "2"})
            assert await there() == ({"example.com/data": "2", **other}, ["False"])
            await said.write("True", "Well", "older")
            assert await there() == (other, ["True"])
            await said.write("False", "Ill", "three", annotations={"example.com/data": "3"})
            await said.withdraw()
            assert await there() == (other, [])
        finally:
            await api.delete(NODES, name)

    async def test_a_watch_goes_on_where_the_list_ended(self, api: KubeApi, place: Place) -> None:
        selector = Selector.named(f"{place.prefix}-a")
        listing = await api.list(CONFIG_MAPS, namespace=place.namespace, selector=selector)
        await api.create(CONFIG_MAPS, place.config_map("a", {"n": "1"}))
        await api.create(CONFIG_MAPS, place.config_map("other"))
        async with self.watching(api, place, listing, selector) as events:
            first = await anext(events)
            assert first.change is Change.BOOKMARK, "the watch says at once that it stands"
            assert await take(events, 1) == [(Change.ADDED, f"{place.prefix}-a")]
            await api.patch(CONFIG_MAPS, f"{place.prefix}-a", {"data": {"n": "2"}}, namespace=place.namespace)
            await api.delete(CONFIG_MAPS, f"{place.prefix}-a", namespace=place.namespace)
            assert [change for change, _ in await take(events, 2)] == [Change.MODIFIED, Change.DELETED]

    @staticmethod
    @contextlib.asynccontextmanager
    async def watching(
        api: KubeApi, place: Place, listing: Listing, selector: Selector
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        events = api.watch(CONFIG_MAPS, listing.resource_version, namespace=place.namespace, selector=selector)
        async with contextlib.aclosing(events) as open_events:  # type: ignore[type-var]
            yield open_events
