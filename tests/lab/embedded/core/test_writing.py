"""Create, update, patch and delete as the real API server does them, in its words."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import DeleteOptions, ObjectLookup, Review, copied
from kgpu.lab.embedded.status import ApiError, Object, forbidden
from tests.lab.embedded.support import CALL, config_map, kind, make_core, pod

MERGE = "application/merge-patch+json"
NOW = DeleteOptions()


@pytest.fixture
def core() -> ApiCore:
    return make_core()


def refusal(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str, str]:
    return error.value.code, error.value.reason, error.value.message


def make(core: ApiCore, obj: Object, plural: str = "configmaps", group: str = "") -> Object:
    return core.create(kind(core, plural, group), "default", obj, CALL).obj


def test_create_fills_in_what_the_server_owns(core: ApiCore) -> None:
    given = config_map("a", {"x": "1"}, uid="mine", creationTimestamp="2000-01-01T00:00:00Z")
    made = make(core, given)
    metadata = made["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] > "2001"
    assert metadata["resourceVersion"] == str(core.store.revision)
    assert metadata["managedFields"][0]["manager"] == "test"
    assert given["metadata"]["uid"] == "mine", "what the caller gave is left alone"


def test_names_are_generated(core: ApiCore) -> None:
    names = {make(core, {"metadata": {"generateName": "x" * 80}})["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(len(name) == 63 for name in names)


@pytest.mark.parametrize(
    ("obj", "namespace", "wanted"),
    [
        (config_map("a"), "none", (404, "NotFound", 'namespaces "none" not found')),
        (config_map("a", namespace="other"), "default", (400, "BadRequest", "the namespace of the provided object does not match the namespace sent on the request")),
        (config_map("a", resourceVersion="5"), "default", (500, "", "resourceVersion should not be set on objects to be created")),
        (config_map("taken"), "default", (409, "AlreadyExists", 'configmaps "taken" already exists')),
        ({"metadata": {}}, "default", (422, "Invalid", 'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required')),
    ],
)  # fmt: skip
def test_creates_that_are_refused(core: ApiCore, obj: Object, namespace: str, wanted: tuple[int, str, str]) -> None:
    make(core, config_map("taken"))
    with pytest.raises(ApiError) as caught:
        core.create(kind(core, "configmaps"), namespace, obj, CALL)
    assert refusal(caught) == wanted


def test_nothing_is_made_in_a_namespace_that_ends(core: ApiCore) -> None:
    spaces = kind(core, "namespaces")
    marked, done = core.delete(spaces, "", "other", NOW, CALL)
    assert (done, marked["status"]["phase"]) == (False, "Terminating")
    with pytest.raises(ApiError) as caught:
        core.create(kind(core, "configmaps"), "other", config_map("a"), CALL)
    why = "unable to create new content in namespace other because it is being terminated"
    assert refusal(caught) == (403, "Forbidden", f'configmaps "a" is forbidden: {why}')
    assert caught.value.details is not None
    assert caught.value.details["causes"][0]["reason"] == "NamespaceTerminating"
    core.patch(spaces, "", "other", MERGE, {"spec": {"finalizers": []}}, CALL, subresource="finalize")
    with pytest.raises(ApiError) as gone:
        core.get(spaces, "", "other")
    assert gone.value.code == 404


def test_the_first_namespaces_stay(core: ApiCore) -> None:
    with pytest.raises(ApiError) as caught:
        core.delete(kind(core, "namespaces"), "", "default", NOW, CALL)
    assert refusal(caught) == (403, "Forbidden", 'namespaces "default" is forbidden: this namespace may not be deleted')


def test_updates_need_the_newest_version_or_none(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    first = make(core, config_map("a", {"x": "1"}))
    second = core.update(maps, "default", "a", {**first, "data": {"x": "2"}}, CALL).obj
    with pytest.raises(ApiError) as caught:
        core.update(maps, "default", "a", {**first, "data": {"x": "3"}}, CALL)
    message = "the object has been modified; please apply your changes to the latest version and try again"
    assert refusal(caught) == (409, "Conflict", f'Operation cannot be fulfilled on configmaps "a": {message}')
    assert core.update(maps, "default", "a", config_map("a", {"x": "4"}), CALL).obj["data"] == {"x": "4"}
    assert second["data"] == {"x": "2"}, "what was handed out stays as it was"


def test_an_update_that_changes_nothing_keeps_the_version(core: ApiCore) -> None:
    first = make(core, config_map("a", {"x": "1"}))
    again = core.update(kind(core, "configmaps"), "default", "a", copied(first), CALL)
    assert again.obj == first
    assert core.store.revision == again.revision


def test_leases_are_not_updated_without_a_version(core: ApiCore) -> None:
    make(core, {"metadata": {"name": "l"}, "spec": {}}, "leases", "coordination.k8s.io")
    with pytest.raises(ApiError) as caught:
        core.update(kind(core, "leases", "coordination.k8s.io"), "default", "l", {"metadata": {"name": "l"}}, CALL)
    assert caught.value.code == 422
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in caught.value.message


def test_updates_of_another_object_are_refused(core: ApiCore) -> None:
    maps, first = kind(core, "configmaps"), make(core, config_map("a"))
    with pytest.raises(ApiError) as caught:
        core.update(maps, "default", "a", config_map("b"), CALL)
    assert refusal(caught) == (400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)")
    with pytest.raises(ApiError) as other:
        core.update(maps, "default", "a", config_map("a", uid="x"), CALL)
    why = f"Precondition failed: UID in precondition: x, UID in object meta: {first['metadata']['uid']}"
    assert other.value.code == 409
    assert why in other.value.message


def test_the_generation_follows_the_spec_and_status_is_apart(core: ApiCore) -> None:
    deployments = kind(core, "deployments", "apps")
    made = make(core, {"metadata": {"name": "d"}, "spec": {"replicas": 1}}, "deployments", "apps")
    change = {"spec": {"replicas": 2}, "status": {"replicas": 9}}
    main, _ = core.patch(deployments, "default", "d", MERGE, change, CALL)
    status, _ = core.patch(deployments, "default", "d", MERGE, change | {"spec": {"replicas": 7}}, CALL, subresource="status")  # fmt: skip
    assert (made["metadata"]["generation"], main.obj["metadata"]["generation"]) == (1, 2)
    assert "status" not in main.obj
    assert (status.obj["spec"]["replicas"], status.obj["status"]["replicas"]) == (2, 9)
    assert status.obj["metadata"]["generation"] == 2


def test_a_wrong_content_type_is_415(core: ApiCore) -> None:
    make(core, config_map("a"))
    with pytest.raises(ApiError) as caught:
        core.patch(kind(core, "configmaps"), "default", "a", "text/plain", {}, CALL)
    assert caught.value.code == 415


def test_dry_runs_change_nothing(core: ApiCore) -> None:
    dry, maps = dataclasses.replace(CALL, dry_run=True), kind(core, "configmaps")
    make(core, config_map("a"))
    before = core.store.revision
    assert core.create(maps, "default", config_map("b"), dry).obj["metadata"]["uid"]
    assert core.patch(maps, "default", "a", MERGE, {"data": {"x": "1"}}, dry)[0].obj["data"] == {"x": "1"}
    assert core.delete(maps, "default", "a", NOW, dry)[1]
    assert core.store.revision == before
    assert len(core.list(maps, "default").items) == 1


def test_deleting_a_pod_on_a_node_waits_for_its_kubelet(core: ApiCore) -> None:
    pods = kind(core, "pods")
    make(core, pod("p", nodeName="n"), "pods")
    first, done = core.delete(pods, "default", "p", NOW, CALL)
    assert (done, first["metadata"]["deletionGracePeriodSeconds"]) == (False, 30)
    assert first["metadata"]["generation"] == 2
    longer, _ = core.delete(pods, "default", "p", DeleteOptions(grace=60), CALL)
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 30, "the time only gets shorter"
    shorter, _ = core.delete(pods, "default", "p", DeleteOptions(grace=5), CALL)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert shorter["metadata"]["deletionTimestamp"] < first["metadata"]["deletionTimestamp"]
    assert core.delete(pods, "default", "p", DeleteOptions(grace=0), CALL)[1]


@pytest.mark.parametrize("spec", [{}, {"nodeName": "n"}])
def test_pods_that_do_not_run_go_at_once(core: ApiCore, spec: dict[str, str]) -> None:
    pods = kind(core, "pods")
    make(core, pod("p", **spec), "pods")
    if spec:
        core.patch(pods, "default", "p", MERGE, {"status": {"phase": "Failed"}}, CALL, subresource="status")
    assert core.delete(pods, "default", "p", NOW, CALL)[1]


def test_finalizers_hold_and_propagation_sets_them(core: ApiCore) -> None:
    jobs = kind(core, "jobs", "batch")
    make(core, {"metadata": {"name": "j"}, "spec": {}}, "jobs", "batch")
    held, done = core.delete(jobs, "default", "j", NOW, CALL)
    assert (done, held["metadata"]["finalizers"]) == (False, ["orphan"]), "jobs leave their pods unless asked"
    last, _ = core.patch(jobs, "default", "j", MERGE, {"metadata": {"finalizers": []}}, CALL)
    assert not last.obj["metadata"].get("finalizers")
    assert core.list(jobs, "default").items == []
    make(core, {"metadata": {"name": "j"}, "spec": {}}, "jobs", "batch")
    assert core.delete(jobs, "default", "j", DeleteOptions(propagation="Background"), CALL)[1]
    make(core, {"metadata": {"name": "j"}, "spec": {}}, "jobs", "batch")
    held, _ = core.delete(jobs, "default", "j", DeleteOptions(propagation="Foreground"), CALL)
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]


def test_delete_answers_and_preconditions(core: ApiCore) -> None:
    maps, made = kind(core, "configmaps"), make(core, config_map("a"))
    with pytest.raises(ApiError) as caught:
        core.delete(maps, "default", "a", DeleteOptions(uid="x"), CALL)
    assert caught.value.code == 409
    assert "the UID in the precondition (x) does not match the UID in record" in caught.value.message
    with pytest.raises(ApiError) as stale:
        core.delete(maps, "default", "a", DeleteOptions(version="1"), CALL)
    assert stale.value.code == 409
    status, done = core.delete(maps, "default", "a", NOW, CALL)
    assert done
    assert status["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}


def test_collections_are_deleted_by_selector(core: ApiCore) -> None:
    maps = kind(core, "configmaps")
    for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
        make(core, config_map(name, labels={"c": colour}))
    gone = core.delete_collection(maps, "default", NOW, CALL, labels="c=red")
    assert [stored.name for stored in gone] == ["a", "c"]
    assert [stored.name for stored in core.list(maps).items] == ["b"]


class Painter:
    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.operation == "CREATE":
            review.obj["metadata"].setdefault("labels", {})["painted"] = str(len(list(reads.list("", "configmaps"))))


class NoRed:
    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.obj.get("data", {}).get("colour") == "red":
            raise forbidden("", "configmaps", review.name, "no red")


def test_admission_changes_before_and_refuses_after_validation() -> None:
    core = make_core(admission=[Painter(), NoRed()])
    assert make(core, config_map("a"))["metadata"]["labels"] == {"painted": "0"}
    with pytest.raises(ApiError) as caught:
        make(core, config_map("b", {"colour": "red"}))
    assert refusal(caught) == (403, "Forbidden", 'configmaps "b" is forbidden: no red')


def test_events_are_one_store_under_two_groups(core: ApiCore) -> None:
    event = {"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p"}, "note": "hello", "reportingController": "x"}  # fmt: skip
    made = make(core, event, "events", "events.k8s.io")
    assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "hello")
    old = core.get(kind(core, "events"), "default", "e").obj
    assert (old["apiVersion"], old["message"], old["involvedObject"]["name"]) == ("v1", "hello", "p")


def test_commits_are_told_to_listeners(core: ApiCore) -> None:
    seen: list[tuple[tuple[str, str], str, str]] = []
    core.on_commit(lambda key, change, stored, _old: seen.append((key, change, stored.name)))
    make(core, config_map("a"))
    core.delete(kind(core, "configmaps"), "default", "a", NOW, CALL)
    assert seen == [(("", "configmaps"), "ADDED", "a"), (("", "configmaps"), "DELETED", "a")]


def test_what_etcd_would_not_take_is_not_stored(core: ApiCore) -> None:
    before = core.store.revision
    with pytest.raises(ApiError) as caught:
        make(core, config_map("big", {"x": "y" * (2 << 20)}))
    assert refusal(caught) == (500, "", "etcdserver: request is too large")
    assert core.store.revision == before
    made = make(core, config_map("grows", {"x": "y"}))
    with pytest.raises(ApiError):
        core.patch(kind(core, "configmaps"), "default", "grows", MERGE, {"data": {"x": "y" * (2 << 20)}}, CALL)
    assert core.get(kind(core, "configmaps"), "default", "grows").obj == made


def test_owners_are_given_up_before_an_object_is(core: ApiCore) -> None:
    many = {f"k{number:05}": "value!" for number in range(90_000)}
    made = make(core, config_map("many", many))
    assert made["data"] == many
    assert "managedFields" not in made["metadata"]
