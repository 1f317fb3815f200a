"""Discovery: the groups, versions and resources of the API, plain and aggregated, as the real server lists them.

Documents are made on the first request, kept encoded, and forgotten when the kinds change.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final

from kgpu.lab.embedded.core.model import encode
from kgpu.lab.embedded.http.negotiate import clauses
from kgpu.lab.embedded.kinds import ApiKind, Kinds, discovery_data
from kgpu.lab.embedded.status import Object

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_VERSIONS: Final = ("v2", "v2beta1")
_KUBE_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?", re.ASCII)
_STAGE: Final = {None: 2, "beta": 1, "alpha": 0}


class Discovery:
    """The discovery documents of one API."""

    def __init__(self, kinds: Kinds, address: str = "") -> None:
        """``address``: the host:port under which clients reach the server."""
        self._kinds = kinds
        self._address = address
        self._cache: dict[str, bytes | None] = {}
        self._rows = _builtin_rows()
        kinds.on_change(self._cache.clear)

    def document(self, path: str) -> bytes | None:
        """``/api``, ``/apis``, ``/apis/GROUP``, ``/api/v1``, ``/apis/GROUP/VERSION``, encoded, or None."""
        return self._cached(path, self._plain, path)

    def aggregated(self, path: str, version: str) -> bytes:
        """All of ``/api`` or ``/apis`` in one document."""
        document = self._cached(f"{path}@{version}", self._whole, path, version)
        assert document is not None
        return document

    def _cached(self, key: str, make: Any, *arguments: str) -> bytes | None:
        if len(self._cache) > 1000:
            self._cache.clear()
        if key not in self._cache:
            value = make(*arguments)
            self._cache[key] = None if value is None else encode(value)
        return self._cache[key]

    def paths(self) -> list[str]:
        """Every path that names a group or a version."""
        paths = ["/api", "/api/v1", "/apis", "/apis/"]
        for group in self._groups():
            paths.append(f"/apis/{group['name']}")
            paths += [f"/apis/{version['groupVersion']}" for version in group["versions"]]
        return paths

    # --- groups ---------------------------------------------------------------------------------------------------

    def _groups(self) -> list[Object]:
        known: list[Object] = [self._with_gated(group) for group in discovery_data()["groups"]]
        names = {group["name"] for group in known}
        custom: dict[str, set[str]] = {}
        for kind in self._kinds:
            if kind.group and kind.group not in names:
                custom.setdefault(kind.group, set()).add(kind.version)
        for name in sorted(custom):
            rows = [{"groupVersion": f"{name}/{version}", "version": version} for version in by_priority(custom[name])]
            known.append({"name": name, "versions": rows, "preferredVersion": rows[0]})
        return known

    def _with_gated(self, group: Object) -> Object:
        """The group with the versions that it has by feature gates only; those come last, as alpha versions do."""
        listed = {row["version"] for row in group["versions"]}
        more = {kind.version for kind in self._kinds if kind.group == group["name"] and not kind.custom} - listed
        rows = [{"groupVersion": f"{group['name']}/{version}", "version": version} for version in by_priority(more)]
        return {**group, "versions": [*group["versions"], *rows]} if rows else group

    def _plain(self, path: str) -> Object | None:
        parts = path.strip("/").split("/")
        if parts == ["api"]:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}]
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
        if parts == ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": self._groups()}
        if parts[0] == "apis" and len(parts) == 2:
            group = next((group for group in self._groups() if group["name"] == parts[1]), None)
            return group and {"kind": "APIGroup", "apiVersion": "v1", **group}
        if parts[0] == "api" and len(parts) == 2:
            return self._resources("", parts[1])
        return self._resources(parts[1], parts[2]) if parts[0] == "apis" and len(parts) == 3 else None

    # --- resources ------------------------------------------------------------------------------------------------

    def _of(self, group: str, version: str) -> list[ApiKind]:
        kinds = [kind for kind in self._kinds if kind.group == group and kind.version == version]
        return sorted(kinds, key=lambda kind: kind.plural) if kinds and kinds[0].custom else kinds

    def _resources(self, group: str, version: str) -> Object | None:
        group_version = f"{group}/{version}" if group else version
        rows = [row for kind in self._of(group, version) for row in self._rows_of(kind)]
        if not rows:
            return None
        head: Object = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
        return {**head, "groupVersion": group_version, "resources": rows}

    def _rows_of(self, kind: ApiKind) -> list[Object]:
        key = kind.api_version, kind.plural
        return self._rows[key] if not kind.custom and key in self._rows else _custom_rows(kind)

    # --- aggregated -----------------------------------------------------------------------------------------------

    def _whole(self, path: str, version: str) -> Object:
        groups: Iterable[Object]
        groups = [{"name": "", "versions": [{"version": "v1"}]}] if path == "/api" else self._groups()
        items = []
        for group in groups:
            versions = [
                {
                    "version": group_version["version"],
                    "resources": self._aggregated_rows(group["name"], group_version["version"]),
                    "freshness": "Current",
                }
                for group_version in group["versions"]
            ]
            items.append({"metadata": {"name": group["name"]} if group["name"] else {}, "versions": versions})
        api_version = f"apidiscovery.k8s.io/{version}"
        return {"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items}

    def _aggregated_rows(self, group: str, version: str) -> list[Object]:
        rows: list[Object] = []
        for kind in self._of(group, version):
            first, *others = self._rows_of(kind)
            row = _aggregated(first, {"resource": first["name"]}, kind)
            subresources = [
                _aggregated(subresource, {"subresource": subresource["name"].partition("/")[2]}, kind)
                for subresource in others
            ]
            rows.append(row | ({"subresources": subresources} if subresources else {}))
        return rows


def _builtin_rows() -> dict[tuple[str, str], list[Object]]:
    """(groupVersion, plural) -> the rows of the resource and its subresources."""
    by_resource: dict[tuple[str, str], list[Object]] = {}
    order = ("name", "singularName", "namespaced", "group", "version", "kind", "verbs", "shortNames", "categories")
    for resource in discovery_data()["resources"]:
        row = {name: resource[name] for name in (*order, "storageVersionHash") if name in resource}
        by_resource.setdefault((resource["groupVersion"], resource["name"].partition("/")[0]), []).append(row)
    # A subresource may be listed before its resource: the resource's own row goes first.
    for rows in by_resource.values():
        rows.sort(key=lambda row: "/" in row["name"])
    return by_resource


def _custom_rows(kind: ApiKind) -> list[Object]:
    text = f"{kind.group}/{kind.version}/{kind.kind}".encode()
    optional = {"shortNames": list(kind.short_names), "categories": list(kind.categories)}
    row: Object = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        **{name: value for name, value in optional.items() if value},
        "storageVersionHash": b64encode(hashlib.sha256(text).digest()[:8]).decode(),
    }
    rows = [row]
    for name, subresource in kind.subresources.items():
        shown = (
            {"group": subresource["group"], "version": subresource["version"]}
            if subresource.get("group") and subresource.get("version")
            else {}
        )
        rows.append(
            {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                **shown,
                "kind": subresource.get("kind") or kind.kind,
                "verbs": list(subresource.get("verbs") or ("get", "patch", "update")),
            }
        )
    return rows


def _aggregated(row: Object, head: Object, kind: ApiKind) -> Object:
    # The real server leaves group and version empty for built-in kinds and fills them in for CRDs.
    default = {"group": kind.group, "version": kind.version} if kind.custom else {"group": "", "version": ""}
    response_kind = {
        "group": row.get("group", default["group"]),
        "version": row.get("version", default["version"]),
        "kind": row["kind"],
    }
    aggregated: Object = {**head, "responseKind": response_kind}
    if "resource" in head:
        aggregated["scope"] = "Namespaced" if row["namespaced"] else "Cluster"
        aggregated["singularResource"] = row["singularName"]
    aggregated["verbs"] = row["verbs"]
    return aggregated | {name: row[name] for name in ("shortNames", "categories") if name in row}


def by_priority(versions: Iterable[str]) -> list[str]:
    """The API's order of versions: v10, v2, v1, v2beta1, v1alpha1, then others by name."""

    def rank(version: str) -> tuple[int, int, int, int]:
        match = _KUBE_VERSION.fullmatch(version)
        if match is None:
            return (1, 0, 0, 0)
        return (0, -_STAGE[match[2]], -int(match[1]), -int(match[3] or 0))

    return sorted(versions, key=lambda version: (rank(version), version))


def wanted_version(accept: str) -> str:
    """``v2`` or ``v2beta1`` when the client prefers the aggregated form, else ""."""
    for clause in clauses(accept):
        if clause.media in ("application/json", "*/*", "application/*"):
            if clause.parameters.get("as") != "APIGroupDiscoveryList":
                return ""
            version = clause.parameters.get("v", "")
            if clause.parameters.get("g") == "apidiscovery.k8s.io" and version in _VERSIONS:
                return version
    return ""


def etag(data: bytes) -> str:
    """A strong ETag of the bytes, quoted."""
    return f'"{hashlib.sha512(data).hexdigest().upper()}"'
