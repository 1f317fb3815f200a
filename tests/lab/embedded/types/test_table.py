"""The table's manifests through the embedded rules alone: the verdicts that matter most, and what must always hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kgpu.lab.embedded.core.model import Call, copied
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests.lab.embedded.types import verdicts
from tests.lab.embedded.types.table import GPU, OWNED, Object, Row, rows

ROWS = {row.id: row for row in rows()}
SERVED = verdicts.core()
# Row -> what the real server says (the wordings that people search for).
SAID = {
    "pod/gpu-half": 'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
    "pod/gpu-requests-only": "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
    "pod/gpu-unequal": 'spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2',
    "limited/too-many": 'pods "p" is forbidden: maximum nvidia.com/gpu usage per Container is 2, but limit is 4',
    "quota/unstated": 'pods "p" is forbidden: failed quota: x: must specify limits.cpu for: a',
    "quota/gpus": "exceeded quota: x, requested: requests.nvidia.com/gpu=3, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=2",
    "pod/runtime-missing": 'pods "p" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
    "pod/priority-missing": 'pods "p" is forbidden: no PriorityClass with name nobody was found',
    "pod/account-missing": 'error looking up service account plain/nobody: serviceaccount "nobody" not found',
    "deployment/mismatch": "`selector` does not match template `labels`",
    "config-map-update/data": "data: Forbidden: field is immutable when `immutable` is set",
}


@pytest.mark.parametrize(("name", "words"), SAID.items(), ids=SAID)
def test_wordings(name: str, words: str) -> None:
    code, message = verdicts.judged(SERVED, ROWS[name])
    assert code in {403, 422}
    assert words in message


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_row_has_a_verdict(row: Row) -> None:
    code, answer = verdicts.judged(SERVED, row)
    assert code in {200, 201, 400, 403, 404, 409, 422}
    assert isinstance(answer, dict if code < 300 else str)


@pytest.mark.parametrize(("manifest", "fields"), OWNED.values(), ids=OWNED)
def test_who_sends_something_empty_owns_it_where_it_is_always_shown(manifest: Object, fields: list[Object]) -> None:
    call = Call(user=verdicts.ADMIN, manager="test", dry_run=True)
    kind = verdicts.kind_of(manifest)
    assert verdicts.owned(SERVED.create(kind, "plain", verdicts.settled(manifest, "plain"), call).obj) == fields


def test_an_empty_list_comes_back_from_storage_as_null() -> None:
    role = created("role/no-rules")
    assert role["rules"] is None
    limits = created("limit-range/type", spec={"limits": []})
    assert limits["spec"] == {"limits": None}


def valid() -> list[tuple[str, Object]]:
    call = Call(user=verdicts.ADMIN, manager="test", dry_run=True)
    found = []
    for row in ROWS.values():
        manifest = verdicts.settled(row.manifest, row.namespace)
        if row.patch is None and verdicts.judged(SERVED, row)[0] == 201:
            kind = verdicts.kind_of(manifest)
            namespace = manifest["metadata"].get("namespace", "") if kind.namespaced else ""
            found.append((row.id, SERVED.create(kind, namespace, manifest, call).obj))
    return found


def test_large_objects_take_another_way_to_the_same_end() -> None:
    call = Call(user=verdicts.ADMIN, manager="test", dry_run=True)
    for name, obj in valid():
        kind = verdicts.kind_of(obj)
        manifest = verdicts.settled(ROWS[name].manifest, ROWS[name].namespace)
        ready = SERVED.prepared(kind, manifest, call, new=True)
        namespace = manifest["metadata"].get("namespace", "") if kind.namespaced else ""
        made = SERVED.create(kind, namespace, ready, dataclasses.replace(call, prepared=True)).obj
        assert verdicts.plain(made) == verdicts.plain(obj), name
        assert verdicts.owned(made) == verdicts.owned(obj), name


def test_what_was_stored_is_read_the_same() -> None:
    """Decoding and defaulting an object that the API gave out changes nothing: a read, an edit, a write."""
    rules = BuiltinRules()
    call = Call(user=verdicts.ADMIN, manager="test", validation="Strict")
    for name, obj in valid():
        kind = verdicts.kind_of(obj)
        again = rules.decode(kind, copied(obj), call)
        rules.default(kind, again)
        assert again == obj, name
        assert rules.validate(kind, again, None, "") == [], name


def created(name: str, **over: Any) -> Object:
    row = ROWS[name]
    code, obj = verdicts.judged(SERVED, Row(row.id, {**row.manifest, **over}, namespace=row.namespace))
    assert code == 201, obj
    return dict(obj)


def test_a_gpu_pod_s_defaults() -> None:
    pod = created("pod/gpu")
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    assert [one["key"] for one in pod["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
    ]  # fmt: skip
    assert (pod["spec"]["priority"], pod["spec"]["serviceAccountName"]) == (0, "default")
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def test_a_pod_has_one_address_of_each_family_at_most() -> None:
    """A patch of a status that adds an address to the one of before is refused, as the real server does it."""
    pod, rules = created("pod/gpu"), BuiltinRules()
    kind = verdicts.kind_of(pod)

    def told(*addresses: str) -> list[str]:
        status = {**pod["status"], "podIP": addresses[0], "podIPs": [{"ip": one} for one in addresses]}
        errors = rules.validate(kind, {**pod, "status": status}, pod, "status")
        return [error.detail for error in errors if error.field.startswith("status.podIPs")]

    assert told("10.244.1.1", "fd00::1") == []
    for two in (("10.244.1.1", "10.244.1.2"), ("fd00::1", "fd00::2"), ("10.244.1.1", "fd00::1", "fd00::2")):
        assert told(*two) == ["may specify no more than one IP for each IP family"]


def test_limit_range_defaults_are_said() -> None:
    pod = created("limited/default")
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "1", GPU: "2"},
        "requests": {"cpu": "200m", GPU: "2"},
    }
    assert pod["metadata"]["annotations"] == {
        "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu, nvidia.com/gpu request for container a; cpu, nvidia.com/gpu limit for container a"
    }  # fmt: skip


def test_services_get_addresses_of_their_own() -> None:
    core = verdicts.core()
    call = Call(user=verdicts.ADMIN, manager="test")
    kind = verdicts.KINDS.need("", "services")
    seen = set()
    for number in range(20):
        manifest = verdicts.settled(ROWS["service/node-port"].manifest, "plain")
        manifest["metadata"]["name"] = f"s{number}"
        spec = core.create(kind, "plain", manifest, call).obj["spec"]
        seen.add((spec["clusterIP"], spec["ports"][0]["nodePort"]))
        assert spec["clusterIP"].startswith("10.")
    assert len({address for address, _ in seen}) == len({port for _, port in seen}) == 20


def test_a_quota_counts_exactly() -> None:
    core = verdicts.core()
    call = Call(user=verdicts.ADMIN, manager="test")
    kind = verdicts.KINDS.need("", "pods")
    for number in range(2):
        manifest = verdicts.settled(ROWS["quota/fits"].manifest, "quota")
        manifest["metadata"]["name"] = f"p{number}"
        core.create(kind, "quota", manifest, call)
    code, message = verdicts.judged(core, ROWS["quota/fits"])
    assert code == 403
    assert (
        "requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
        in message
    )
