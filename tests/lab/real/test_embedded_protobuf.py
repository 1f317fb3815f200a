"""The embedded server's protobuf decoder against the real server's encoder: every object of the cluster, and many made
for it, fetched as protobuf and as JSON, must be the same."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.lab.embedded import protobuf
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.protobuf.messages import read
from kgpu.lab.embedded.protobuf.wire import length, tag
from kgpu.lab.real.server import ApiServerConnection
from tests.lab.embedded.protobuf.full import FULL
from tests.lab.embedded.types import verdicts
from tests.lab.embedded.types.table import Object, rows

from .conftest import Cluster, until

# Lists have no message of their own in the table: field 2 of each is its items.
ITEMS = 2
_CHANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=kube-api-access-)\w{5}")
KINDS = [kind for kind in Kinds() if "list" in kind.verbs]


@pytest.fixture(scope="module")
def real(cluster: Cluster) -> Iterator[ApiServerConnection]:
    found = ApiServerConnection(cluster.lab.kubeconfig)
    yield found
    found.close()


@pytest.fixture(scope="module")
def namespace(real: ApiServerConnection) -> Iterator[str]:
    name = f"h-protobuf-{uuid.uuid4().hex[:6]}"
    real("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    until(lambda: real("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")[0] == 200, "the account")
    yield name
    real("DELETE", f"/api/v1/namespaces/{name}")


def path_of(kind: ApiKind, namespace: str = "") -> str:
    root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
    return f"{root}/namespaces/{namespace}/{kind.plural}" if namespace else f"{root}/{kind.plural}"


def parsed(text: bytes) -> Any:
    return json.loads(text)


def without_nulls(value: Any) -> Any:
    """Go prints nil slices as null where there is no ``omitempty``; a message does not have them."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def items(data: bytes, kind: ApiKind) -> list[Object]:
    """The objects of a list in protobuf."""
    raw = unwrapped(data)
    found, at = [], 0
    while at < len(raw):
        number, _, at = tag(raw, at, len(raw), "List")
        begin, at = length(raw, at, len(raw))
        if number == ITEMS:
            found.append(read(raw[begin:at], kind.schema, parsed))
    return found


def ordered(found: list[Object]) -> list[Object]:
    """Component statuses come in any order."""
    return sorted(found, key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"]))


def same(before: Object, after: Object) -> bool:
    return ordered(before["items"] or []) == ordered(after["items"] or [])


def unwrapped(data: bytes) -> bytes:
    at, end = 4, len(data)
    while at < end:
        number, _, at = tag(data, at, end, "Unknown")
        begin, at = length(data, at, end)
        if number == 2:
            return data[begin:at]
    raise AssertionError("no object in it")


@pytest.mark.parametrize("kind", KINDS, ids=[f"{kind.plural}.{kind.api_version}" for kind in KINDS])
def test_what_the_cluster_has(kind: ApiKind, real: ApiServerConnection) -> None:
    def both() -> tuple[list[Object], list[Object]] | None:
        code, before = real("GET", path_of(kind))
        if code in {404, 405}:
            pytest.skip(f"not served: {before['message']}")
        code, encoded = real("GET", path_of(kind), accept=protobuf.MEDIA)
        assert code == 200
        assert isinstance(encoded, bytes), encoded
        _, after = real("GET", path_of(kind))
        return (ordered(after["items"] or []), ordered(items(encoded, kind))) if same(before, after) else None

    found = until(both, "a moment without changes")
    expected = [without_nulls({k: v for k, v in one.items() if k not in ("apiVersion", "kind")}) for one in found[0]]
    assert found[1] == expected


def settled(manifest: Object, namespace: str) -> Object:
    found = verdicts.settled(manifest, namespace)
    if "namespace" in found["metadata"]:
        found["metadata"]["namespace"] = namespace
    if "regarding" in found:
        found["regarding"]["namespace"] = namespace
    return found


def made(real: ApiServerConnection, manifest: Object, namespace: str) -> tuple[Object | str, Object]:
    """(as it was decoded or why it was refused, as JSON), neither stored."""
    wanted = settled(manifest, namespace)
    kind = verdicts.kind_of(wanted)
    path = f"{path_of(kind, namespace if kind.namespaced else '')}?dryRun=All"
    code, refused = real("POST", path, wanted)
    if code != 201:
        return str(refused["message"]), {}

    def as_json() -> Object:
        return stable(without_nulls(real("POST", path, wanted)[1]))

    def both() -> tuple[Object | str, Object] | None:
        before = as_json()
        code, encoded = real("POST", path, wanted, accept=protobuf.MEDIA)
        assert code == 201
        # A volume gets the time it was made at into its status.
        return (stable(protobuf.decode(encoded, ("", ""), parsed)), before) if as_json() == before else None

    return until(both, "a moment within one second")


def stable(obj: Object) -> Object:
    """Without what each request gets anew."""
    found = copy.deepcopy(obj)
    for name in ("uid", "creationTimestamp"):
        assert found["metadata"].pop(name, "-"), name
    for entry in found["metadata"].get("managedFields", ()):
        assert entry.pop("time")
    spec = found.get("spec", {})
    for name in ("clusterIP", "clusterIPs", "healthCheckNodePort"):
        spec.pop(name, None)
    for port in spec.get("ports", ()):
        port.pop("nodePort", None)
    for claim in spec.get("volumeClaimTemplates", ()):
        # Messages have neither; the server puts them back on its way to JSON.
        claim.pop("apiVersion", None), claim.pop("kind", None)
    text = _CHANCE.sub("chance", json.dumps(found)).replace(f'"{obj["metadata"]["name"]}"', '"NAME"')
    return dict(json.loads(text))


@pytest.mark.parametrize("manifest", FULL, ids=lambda one: str(one["kind"]))
def test_fields_that_are_not_like_their_json(manifest: Object, real: ApiServerConnection, namespace: str) -> None:
    decoded, expected = made(real, manifest, namespace)
    assert decoded == expected


def test_manifests_of_all_sorts(real: ApiServerConnection, namespace: str) -> None:
    found = [made(real, row.manifest, namespace) for row in rows() if row.patch is None]
    accepted = [(decoded, expected) for decoded, expected in found if expected]
    for decoded, expected in accepted:
        assert decoded == expected
    assert len(accepted) > 100
    assert len({expected["kind"] for _, expected in accepted}) > 20
