"""The embedded rules against the real server: the same table of manifests through both, verdicts and objects alike."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.base.quantity import Quantity
from tests.lab.embedded.types import verdicts
from tests.lab.embedded.types.real_server import RealServer
from tests.lab.embedded.types.table import OWNED, STANDING, Object, Row, laid, rows

from .conftest import Cluster, until

ROWS = rows()


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[tuple[RealServer, dict[str, str]]]:
    """The server, and the table's namespaces as they are called there."""
    found = RealServer.of_kubeconfig(json.loads(cluster.lab.kubeconfig.read_text()))
    yield from prepared(found)


def prepared(found: RealServer) -> Iterator[tuple[RealServer, dict[str, str]]]:
    names = {name: f"h-{name}-{uuid.uuid4().hex[:6]}" for name in STANDING}
    try:
        for name in names.values():
            found.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            until(lambda account=account: found.call("GET", account)[0] == 200, f"the account of {name}")
        for name, objects in STANDING.items():
            for one in objects:
                manifest = verdicts.settled(one, names[name])
                assert found.call("POST", found.path(manifest), manifest)[0] == 201
                if one["kind"] == "ResourceQuota":
                    path = f"{found.path(manifest)}/{one['metadata']['name']}"
                    until(
                        lambda path=path: found.call("GET", path)[1].get("status", {}).get("used"), "the quota's sums"
                    )
        yield found, names
    finally:
        for name in names.values():
            found.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_the_real_server_says_the_same(row: Row, server: tuple[RealServer, dict[str, str]]) -> None:
    real, names = server
    expected = renamed(real.judged(row, names[row.namespace]), names)
    assert verdicts.judged(embedded(), row) == expected


@pytest.mark.parametrize(("manifest", "fields"), OWNED.values(), ids=OWNED)
def test_the_real_server_s_owners_of_what_is_empty(
    manifest: Object, fields: list[Object], server: tuple[RealServer, dict[str, str]]
) -> None:
    real, names = server
    sent = verdicts.settled(manifest, names["plain"])
    code, found = real.call("POST", f"{real.path(sent)}?dryRun=All", sent)
    assert (code, verdicts.owned(found)) == (201, fields)


def embedded(made: list[Any] = []) -> Any:  # noqa: B006 - one core for all rows
    if not made:
        made.append(verdicts.core())
    return made[0]


def renamed(verdict: tuple[int, Any], names: dict[str, str]) -> tuple[int, Any]:
    """With the namespaces' names of the table."""
    text = json.dumps(verdict[1])
    for name, real in names.items():
        text = text.replace(real, name)
    return verdict[0], json.loads(text)


def test_the_table_is_worth_it() -> None:
    assert len(ROWS) >= 150
    assert laid({"a": {"b": 1}}, {"a": {"=": {}}}) == {"a": {}}


QUANTITIES = [
    "0",
    "1",
    "0.5",
    "500m",
    "1000m",
    "1100m",
    "1.5Gi",
    "1024Ki",
    "0.5Ki",
    "1e3",
    "1.5e3",
    "12e6",
    "1E",
    "0.1n",
    "100u",
    "1000k",
    "1.2345678912n",
    "0.1Mi",
    "9Ei",
    "1000000",
    "1e-3",
    "+1",
    "01",
    "1.500",
    "1E3",
    "128974848",
    "1Ti",
    "1.25Ti",
    "1234567890123456789",
    "1T",
    "999999999999999999999Ki",
    "7Ki",
    "8Ki",
    ".",
    "1.",
]


@pytest.mark.parametrize("text", QUANTITIES)
def test_quantities_print_as_the_real_server_s(text: str, server: tuple[RealServer, dict[str, str]]) -> None:
    real, names = server
    volume = {"name": "v", "emptyDir": {"sizeLimit": text}}
    pod = {"spec": {"containers": [{"name": "a", "image": "b"}], "volumes": [volume]}, "metadata": {"name": "quantity"}}
    path = f"/api/v1/namespaces/{names['plain']}/pods?dryRun=All"
    code, answer = real.call("POST", path, {"apiVersion": "v1", "kind": "Pod", **pod})
    assert code == 201, answer
    assert str(Quantity.parse(text)) == answer["spec"]["volumes"][0]["emptyDir"]["sizeLimit"]
