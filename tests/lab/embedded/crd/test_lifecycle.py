"""A CRD from its creation to its end, on a whole core: names, conditions, versions, subresources, and its objects."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import ApiUser, Call, DeleteOptions
from kgpu.lab.embedded.crd.custom_kinds import CustomKinds
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests.lab.embedded.crd.cases import GROUP, SCHEMAS, STR, crd, obj, version

Raw = dict[str, Any]
ADMIN = ApiUser("admin", ("system:masters",))
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
DEFAULT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
CRDS = ("apiextensions.k8s.io", "customresourcedefinitions")


def call(manager: str = "test", **more: Any) -> Call:
    return Call(user=ADMIN, manager=manager, **more)


class Cluster:
    """A core with the CRDs of ``SCHEMAS`` that a test installs."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store or ObjectStore()
        self.kinds = Kinds()
        self.custom = CustomKinds(self.kinds)
        self.core = ApiCore(self.kinds, self.store, self.custom.rules_for(BuiltinRules()), ())
        self.core.custom = self.custom
        self.custom.attach(self.core)
        self.custom.settle()
        if self.store.get(("", "namespaces"), "", "default") is None:
            self.core.create(self.kinds.need("", "namespaces"), "", DEFAULT, call())

    @property
    def crds(self) -> ApiKind:
        return self.kinds.need(*CRDS)

    def kind(self, plural: str, wanted: str = "v1") -> ApiKind:
        found = self.kinds.find(GROUP, wanted, plural)
        assert found is not None, plural
        return found

    def install(self, definition: Raw) -> Raw:
        self.core.create(self.crds, "", definition, call())
        self.custom.settle()
        return self.crd(definition["metadata"]["name"])

    def crd(self, name: str) -> Raw:
        return self.core.get(self.crds, "", name).obj

    def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        rows = self.crd(name)["status"]["conditions"]
        return {row["type"]: (row["status"], row["reason"]) for row in rows}

    def make(self, plural: str, name: str, **more: Any) -> Raw:
        kind = self.kind(plural)
        meta = {"name": name, **more.pop("metadata", {})}
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **more}
        return self.core.create(kind, "default" if kind.namespaced else "", body, call()).obj

    def remove(self, name: str) -> None:
        self.core.delete(self.crds, "", name, DeleteOptions(), call())
        self.custom.settle()


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    for name in ("parts", "twos", "lists", "wides"):
        found.install(SCHEMAS[name])
    return found


def refused(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str]:
    return error.value.code, error.value.message


def test_a_new_crd_is_established(cluster: Cluster) -> None:
    name = f"parts.{GROUP}"
    accepted = {"Established": ("True", "InitialNamesAccepted"), "NamesAccepted": ("True", "NoConflicts")}
    assert cluster.conditions(name) == accepted
    names = cluster.crd(name)["status"]["acceptedNames"]
    assert names == {
        "plural": "parts", "singular": "part", "kind": "Part", "listKind": "PartList", "shortNames": ["pt"],
        "categories": ["all", "kgpu"],
    }  # fmt: skip
    assert cluster.crd(name)["status"]["storedVersions"] == ["v1"]


def test_names_that_another_has_are_not_accepted_until_it_goes(cluster: Cluster) -> None:
    other = crd("others", [version(obj(spec=obj(a=STR)))], kind="Part", names={"shortNames": ["pt"]})
    found = cluster.install(other)
    name = f"others.{GROUP}"
    assert cluster.conditions(name)["NamesAccepted"][0] == "False"
    assert cluster.conditions(name)["Established"] == ("False", "NotAccepted")
    assert found["status"]["acceptedNames"]["plural"] == "others"
    assert cluster.kinds.find(GROUP, "v1", "others") is None
    cluster.remove(f"parts.{GROUP}")
    assert cluster.conditions(name) == {
        "Established": ("True", "InitialNamesAccepted"),
        "NamesAccepted": ("True", "NoConflicts"),
    }
    assert cluster.kind("others").short_names == ("pt",)


def test_each_served_version_shows_the_same_objects(cluster: Cluster) -> None:
    cluster.make("twos", "x", spec={"a": "1"})
    v1, old = cluster.kind("twos"), cluster.kind("twos", "v1beta1")
    assert cluster.core.get(v1, "default", "x").obj["spec"] == {"a": "1", "b": 1}
    shown = cluster.core.get(old, "default", "x").obj
    assert (shown["apiVersion"], shown["spec"]) == (f"{GROUP}/v1beta1", {"a": "1"})
    assert cluster.custom.deprecation(old) == f"{GROUP}/v1beta1 Two is deprecated; use {GROUP}/v1 Two"
    assert cluster.custom.deprecation(v1) == ""


def test_a_version_that_is_served_no_more_is_not_there(cluster: Cluster) -> None:
    changed = copy.deepcopy(cluster.crd(f"twos.{GROUP}"))
    changed["spec"]["versions"][0]["served"] = False
    cluster.core.update(cluster.crds, "", f"twos.{GROUP}", changed, call())
    cluster.custom.settle()
    assert cluster.kinds.find(GROUP, "v1beta1", "twos") is None
    assert cluster.kind("twos")


def test_a_changed_schema_holds_for_the_next_object(cluster: Cluster) -> None:
    changed = copy.deepcopy(cluster.crd(f"wides.{GROUP}"))
    schema = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["a"]["maxLength"] = 2
    cluster.core.update(cluster.crds, "", f"wides.{GROUP}", changed, call())
    cluster.custom.settle()
    with pytest.raises(ApiError) as error:
        cluster.make("wides", "x", spec={"a": "long"})
    assert refused(error) == (
        422,
        'Wide.crds.test.kgpu.dev "x" is invalid: spec.a: Too long: may not be more than 2 bytes',
    )


def with_defaults(cluster: Cluster, **defaults: Any) -> None:
    """The CRD ``wides`` with those defaults of spec's fields."""
    changed = copy.deepcopy(cluster.crd(f"wides.{GROUP}"))
    fields = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for name, default in defaults.items():
        fields.setdefault(name, {"type": "string"})["default"] = default
    cluster.core.update(cluster.crds, "", f"wides.{GROUP}", changed, call())
    cluster.custom.settle()


def test_a_default_that_comes_later_is_in_what_was_stored_before(cluster: Cluster) -> None:
    kind = cluster.kind("wides")
    before = cluster.make("wides", "x", spec={})
    assert before["spec"] == {}
    with_defaults(cluster, a="A")
    assert cluster.core.get(kind, "", "x").obj == {**before, "spec": {"a": "A"}}
    assert [one.obj["spec"] for one in cluster.core.list(kind).items] == [{"a": "A"}]
    assert [one.obj["spec"] for one in cluster.core.list(kind, limit=5).items] == [{"a": "A"}]
    item = cluster.core.watch(kind).pop()
    assert item is not None
    assert (item.type, item.stored.obj["spec"]) == ("ADDED", {"a": "A"})
    # What has been stored with it keeps it.
    cluster.make("wides", "y", spec={})
    with_defaults(cluster, a=None, later="B")
    assert cluster.core.get(kind, "", "y").obj["spec"] == {"a": "A", "later": "B"}
    assert cluster.core.get(kind, "", "x").obj["spec"] == {"later": "B"}


def test_an_object_is_stored_anew_by_a_write_that_changes_nothing_else(cluster: Cluster) -> None:
    kind = cluster.kind("wides")
    version_before = cluster.make("wides", "x", spec={})["metadata"]["resourceVersion"]
    with_defaults(cluster, a="A")
    shown = copy.deepcopy(cluster.core.get(kind, "", "x").obj)
    assert shown["metadata"]["resourceVersion"] == version_before
    written = cluster.core.update(kind, "", "x", shown, call())
    assert written.obj["metadata"]["resourceVersion"] != version_before
    again = cluster.core.update(kind, "", "x", copy.deepcopy(written.obj), call())
    assert again.revision == written.revision


def test_a_changed_schema_ends_the_watches_of_its_kind(cluster: Cluster) -> None:
    watch, other = cluster.core.watch(cluster.kind("wides")), cluster.core.watch(cluster.kind("parts"))
    with_defaults(cluster, a="A")
    assert (watch.closed, other.closed) == (True, False)
    cluster.remove(f"parts.{GROUP}")
    assert other.closed


def test_a_crd_takes_its_objects_along(cluster: Cluster) -> None:
    kind = cluster.kind("parts")
    for number in range(300):
        cluster.make("parts", f"p{number}", spec={})
    cluster.remove(f"parts.{GROUP}")
    assert cluster.store.table(kind.key).count("") == 0
    assert cluster.kinds.find(GROUP, "v1", "parts") is None
    with pytest.raises(ApiError) as error:
        cluster.crd(f"parts.{GROUP}")
    assert error.value.code == 404


def test_a_crd_waits_for_objects_with_finalizers(cluster: Cluster) -> None:
    kind, name = cluster.kind("wides"), f"wides.{GROUP}"
    cluster.make("wides", "x", metadata={"finalizers": ["a.b/c"]}, spec={"a": "x"})
    cluster.remove(name)
    assert cluster.crd(name)["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert cluster.conditions(name)["Terminating"][0] == "True"
    assert "deletionTimestamp" in cluster.core.get(kind, "", "x").obj["metadata"]
    with pytest.raises(ApiError) as error:
        cluster.make("wides", "y", spec={})
    assert refused(error) == (405, "create not allowed while custom resource definition is terminating")
    cluster.core.patch(kind, "", "x", MERGE, {"metadata": {"finalizers": None}}, call())
    cluster.custom.settle()
    with pytest.raises(ApiError) as gone:
        cluster.crd(name)
    assert gone.value.code == 404


def test_kept_crds_are_served_again() -> None:
    first = Cluster()
    first.install(SCHEMAS["wides"])
    first.make("wides", "x", spec={"a": "1"})
    second = Cluster(first.store)
    assert second.core.get(second.kind("wides"), "", "x").obj["spec"] == {"a": "1"}


# --- subresources and selectors --------------------------------------------------------------------------------------


def test_status_and_spec_are_apart(cluster: Cluster) -> None:
    kind = cluster.kind("parts")
    made = cluster.make("parts", "x", spec={"replicas": 1}, status={"state": "Up"})
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    status = {"spec": {"replicas": 9}, "status": {"state": "Up"}}
    found, _ = cluster.core.patch(kind, "default", "x", MERGE, status, call("status"), subresource="status")
    assert (found.obj["spec"], found.obj["status"]) == ({"replicas": 1}, {"state": "Up"})
    assert found.obj["metadata"]["generation"] == 1
    managers = {(one["manager"], one.get("subresource")) for one in found.obj["metadata"]["managedFields"]}
    assert managers == {("test", None), ("status", "status")}
    found, _ = cluster.core.patch(kind, "default", "x", MERGE, {"spec": {"replicas": 2}, "status": None}, call())
    assert found.obj["status"] == {"state": "Up"}
    assert found.obj["metadata"]["generation"] == 2


def test_scale_reads_and_writes_the_fields_that_the_crd_names(cluster: Cluster) -> None:
    kind = cluster.kind("parts")
    cluster.make("parts", "x", spec={"replicas": 3})
    body = {"status": {"replicas": 2, "selector": "a=b"}}
    cluster.core.patch(kind, "default", "x", MERGE, body, call(), subresource="status")
    scale = cluster.core.get(kind, "default", "x", subresource="scale").obj
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "a=b"})
    cluster.core.patch(kind, "default", "x", MERGE, {"spec": {"replicas": 7}}, call(), subresource="scale")
    assert cluster.core.get(kind, "default", "x").obj["spec"] == {"replicas": 7}
    with pytest.raises(ApiError) as error:
        cluster.core.patch(kind, "default", "x", MERGE, {"spec": {"replicas": 101}}, call(), subresource="scale")
    assert error.value.code == 422


def test_fields_that_the_crd_names_select(cluster: Cluster) -> None:
    kind = cluster.kind("parts")
    for name, text in (("x", "a"), ("y", "b"), ("z", "a")):
        cluster.make("parts", name, spec={"text": text})
    page = cluster.core.list(kind, "default", labels="", fields="spec.text=a")
    assert [one.name for one in page.items] == ["x", "z"]
    with pytest.raises(ApiError) as error:
        cluster.core.list(kind, "default", labels="", fields="spec.replicas=1")
    assert refused(error)[0] == 400
    assert "field label not supported: spec.replicas" in refused(error)[1]


def test_applied_lists_are_merged_by_their_keys(cluster: Cluster) -> None:
    kind = cluster.kind("lists")

    def apply(manager: str, force: bool = False, **spec: Any) -> Raw:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x"}, "spec": spec}
        return cluster.core.patch(kind, "default", "x", APPLY, body, call(manager, force=force))[0].obj["spec"]  # type: ignore[no-any-return]

    apply("one", set=["a", "b"], one=[{"name": "x", "value": 1}], two=[{"port": 1}])
    found = apply("other", set=["b", "c"], one=[{"name": "y", "value": 2}], two=[{"port": 1, "protocol": "UDP"}])
    assert found == {
        "set": ["a", "b", "c"],
        "one": [{"name": "x", "value": 1}, {"name": "y", "value": 2}],
        "two": [{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}],
    }
    with pytest.raises(ApiError) as error:
        apply("other", one=[{"name": "x", "value": 5}])
    assert refused(error) == (409, 'Apply failed with 1 conflict: conflict with "one": .spec.one[name="x"].value')
    found = apply("other", force=True, one=[{"name": "x", "value": 5}])
    assert found["one"] == [{"name": "x", "value": 5}]
    assert found["set"] == ["a", "b"]
    assert found["two"] == [{"port": 1, "protocol": "TCP"}]


def test_objects_that_are_handed_out_are_never_changed(cluster: Cluster) -> None:
    kind = cluster.kind("twos")
    stored = cluster.core.get(kind, "default", cluster.make("twos", "x", spec={"a": "1"})["metadata"]["name"])
    before = copy.deepcopy(stored.obj)
    cluster.core.get(cluster.kind("twos", "v1beta1"), "default", "x")
    cluster.core.patch(kind, "default", "x", MERGE, {"spec": {"a": "2", "b": None}}, call())
    cluster.remove(f"twos.{GROUP}")
    assert stored.obj == before
