"""Random histories of one object, written by several managers in every way there is, for the patch comparison.

A ``Subject`` is a kind with the values that its writers fight over; ``History`` plays one seed on the real server and
on our functions and complains about any difference in the object, in managedFields or in a refusal.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.patch import JSON, MERGE, STRATEGIC, apply_patch
from kgpu.lab.embedded.patch.apply import server_side_apply
from kgpu.lab.embedded.patch.managed import after_write, reset_fields, unchanged
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.real.server import ApiServerConnection

APPLY = "application/apply-patch+yaml"
Object = dict[str, Any]
LETTERS = "abc"


@dataclass(frozen=True)
class Subject:
    """A kind to write. ``config`` makes a partial object; ``settle`` does what defaulting would, in place."""

    kind: ApiKind
    schema: SchemaNode
    base: Callable[[], Object]
    config: Callable[[random.Random], Object]
    settle: Callable[[Object], None]
    admitted: tuple[tuple[str, ...], ...] = ()  # what admission and allocation add on create
    status: Callable[[random.Random], Object] | None = None

    @property
    def path(self) -> str:
        prefix = f"/apis/{self.kind.api_version}" if self.kind.group else f"/api/{self.kind.version}"
        return f"{prefix}/namespaces/{{namespace}}/{self.kind.plural}"


class Difference(AssertionError):
    """The real server did something else."""


def plain(obj: Object) -> Object:
    """Without what the server counts itself."""
    meta = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion", "generation")}
    return {**obj, "metadata": meta}


def timeless(obj: Object) -> list[Object]:
    return [{**one, "time": "time" in one} for one in obj["metadata"].get("managedFields", [])]


class History:
    """One seed. ``run`` raises Difference; ``steps`` counts the writes that both sides took, ``refused`` the rest."""

    def __init__(self, server: ApiServerConnection, subject: Subject, namespace: str, seed: int) -> None:
        self.server, self.subject, self.seed = server, subject, seed
        self.random = random.Random(seed)
        self.name = f"s{seed}"
        self.collection = subject.path.format(namespace=namespace)
        self.namespace = namespace
        self.live: Object | None = None
        self.steps = self.refused = 0
        self.log: list[str] = []

    def run(self, length: int = 9) -> None:
        ways = [self.apply, self.apply, self.apply, self.put, self.patch_json, self.patch_merge, self.patch_strategic]
        if self.subject.status is not None:
            ways += [self.status, self.status]
        try:
            (self.apply if self.random.random() < 0.5 else self.create)()
            for _ in range(length):
                if self.live is None:
                    self.create()
                else:
                    self.random.choice(ways)()
        finally:
            self.server("DELETE", f"{self.collection}/{self.name}", {"gracePeriodSeconds": 0})

    def manager(self) -> str:
        return self.random.choice(["alice", "bob", "carol", "kubectl"])

    def body(self) -> Object:
        kind = self.subject.kind
        meta: Object = {"name": self.name, "namespace": self.namespace}
        for field in ("labels", "annotations"):
            if self.random.random() < 0.4:
                meta[field] = self.some_map()
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **self.subject.config(self.random)}

    def some_map(self) -> dict[str, str]:
        keys = [key for key in LETTERS if self.random.random() < 0.4]
        if self.subject.kind.custom:
            # Of a custom resource the real server keeps an empty map that was applied, unseen, until the next write.
            keys = keys or ["a"]
        return {key: self.random.choice("12") for key in keys}

    def full(self) -> Object:
        body = self.subject.base()
        body |= {"apiVersion": self.subject.kind.api_version, "kind": self.subject.kind.kind}
        body["metadata"] = {"name": self.name, "namespace": self.namespace, **body.get("metadata", {})}
        return body

    # --- the ways to write -------------------------------------------------------------------------------------------

    def create(self) -> None:
        manager, body = self.manager(), self.full()
        status, real = self.server("POST", f"{self.collection}?fieldManager={manager}", body)
        self.note("create", manager, body, status)
        assert status == 201, real
        new = copy.deepcopy(real)
        for *above, last in self.subject.admitted:
            holder = new
            for key in above:
                holder = holder.get(key, {})
            holder.pop(last, None)
        new["metadata"].pop("managedFields")
        self.accept(
            real, {**real, "metadata": {**new["metadata"], "managedFields": self.tracked(None, new, manager, real)}}
        )

    def put(self) -> None:
        manager = self.manager()
        body = copy.deepcopy(self.live)
        assert body is not None
        config = self.body()
        # A put of a whole object: the live one with a merge of something, lists replaced.
        body = apply_patch(
            MERGE, body, {key: value for key, value in config.items() if key != "status"}, self.subject.schema
        )
        body["metadata"].pop("resourceVersion")
        choice = self.random.random()
        if choice < 0.5:
            body["metadata"].pop("managedFields", None)
        elif choice < 0.6:
            body["metadata"]["managedFields"] = []
        elif choice < 0.7:
            body["metadata"]["managedFields"] = body["metadata"].get("managedFields", [])[:1]
        status, real = self.server("PUT", f"{self.collection}/{self.name}?fieldManager={manager}", body)
        self.note("put", manager, body, status)
        if self.took(status, real):
            mine = self.settled({**body, "status": self.live["status"]} if "status" in self.live else body)
            self.accept(real, self.with_account(mine, manager, real))

    def patch_merge(self) -> None:
        patch = self.body()
        for part in (patch, patch["metadata"]):
            for key in [key for key in part if key not in ("metadata", "apiVersion", "kind", "name", "namespace")]:
                if self.random.random() < 0.2:
                    part[key] = dict.fromkeys(LETTERS) if key in ("labels", "annotations", "data") else part[key]
        self.patch(MERGE, patch)

    def patch_strategic(self) -> None:
        if self.subject.kind.custom:
            self.patch_merge()
            return
        patch = self.body()
        spec = patch.get("template", {}).get("spec")
        if spec and spec.get("containers"):
            if self.random.random() < 0.3:
                spec["containers"].append({"name": self.random.choice(LETTERS), "$patch": "delete"})
            if self.random.random() < 0.3:
                order = sorted({one["name"] for one in spec["containers"] if "$patch" not in one})
                spec["containers"].sort(key=lambda one: one["name"])
                spec["$setElementOrder/containers"] = [{"name": one} for one in order]
        self.patch(STRATEGIC, patch)

    def patch_json(self) -> None:
        assert self.live is not None
        key = self.random.choice(LETTERS)
        operations: list[Object] = [
            {"op": "add", "path": f"/metadata/{field}", "value": {}}
            for field in ("labels", "annotations")
            if field not in self.live["metadata"]
        ]
        there = self.live["metadata"].get("labels", {})
        if key in there and self.random.random() < 0.5:
            operations.append({"op": "remove", "path": f"/metadata/labels/{key}"})
        else:
            operations.append({"op": "replace", "path": f"/metadata/labels/{key}", "value": self.random.choice("12")})
        if self.random.random() < 0.2:
            operations.append({"op": "test", "path": "/metadata/labels/a", "value": "1"})
        self.patch(JSON, operations)

    def patch(self, content_type: str, patch: Any) -> None:
        manager = self.manager()
        address = f"{self.collection}/{self.name}?fieldManager={manager}"
        status, real = self.server("PATCH", address, patch, content_type=content_type)
        self.note(content_type, manager, patch, status)
        try:
            assert self.live is not None
            mine = apply_patch(content_type, self.live, patch, self.subject.schema)
        except ApiError as error:
            self.same_refusal(error, status, real)
            return
        if self.took(status, real):
            mine = self.settled(mine)
            self.accept(real, self.with_account(mine, manager, real))

    def apply(self, subresource: str = "", config: Object | None = None) -> None:
        manager, force = self.manager(), self.random.random() < 0.35
        config = config or (self.body() if self.live is not None else self.full())
        end = f"/{subresource}" if subresource else ""
        query = f"fieldManager={manager}&force={str(force).lower()}"
        status, real = self.server("PATCH", f"{self.collection}/{self.name}{end}?{query}", config, content_type=APPLY)
        self.note(f"apply{end}{' force' if force else ''}", manager, config, status)
        reset = reset_fields(self.subject.kind, subresource)
        try:
            mine = server_side_apply(
                self.live, config, self.subject.schema, manager=manager, force=force, subresource=subresource,
                api_version=self.subject.kind.api_version, now=self.now(real), reset=reset,
            )  # fmt: skip
        except ApiError as error:
            self.same_refusal(error, status, real)
            return
        if not self.took(status, real):
            return
        if self.live is None:
            mine = {
                **real,
                "metadata": {**real["metadata"], "managedFields": mine["metadata"].get("managedFields", [])},
            }
        self.accept(real, self.settled(mine))

    def status(self) -> None:
        assert self.subject.status is not None
        assert self.live is not None
        part = self.subject.status(self.random)
        config = {key: self.live[key] for key in ("apiVersion", "kind")}
        config |= {"metadata": {"name": self.name, "namespace": self.namespace}, "status": part}
        if self.random.random() < 0.5:
            self.apply("status", config)
            return
        manager = self.manager()
        address = f"{self.collection}/{self.name}/status?fieldManager={manager}"
        status, real = self.server("PATCH", address, {"status": part}, content_type=MERGE)
        self.note("patch status", manager, part, status)
        if self.took(status, real):
            mine = self.settled(apply_patch(MERGE, self.live, {"status": part}, self.subject.schema))
            self.accept(real, self.with_account(mine, manager, real, "status"))

    # --- the comparison ----------------------------------------------------------------------------------------------

    def now(self, real: Any) -> str:
        """The time that the server has just used, if it did."""
        entries = real.get("metadata", {}).get("managedFields", []) if isinstance(real, dict) else []
        return max((one["time"] for one in entries if "time" in one), default="2026-01-01T00:00:00Z")

    def tracked(self, old: Object | None, new: Object, manager: str, real: Any, subresource: str = "") -> list[Object]:
        return after_write(
            old, new, self.subject.schema, manager=manager, subresource=subresource,
            api_version=self.subject.kind.api_version, now=self.now(real),
            reset=reset_fields(self.subject.kind, subresource),
        )  # fmt: skip

    def with_account(self, mine: Object, manager: str, real: Any, subresource: str = "") -> Object:
        account = self.tracked(self.live, mine, manager, real, subresource)
        meta = {key: value for key, value in mine["metadata"].items() if key != "managedFields"}
        return {**mine, "metadata": {**meta, "managedFields": account} if account else meta}

    def settled(self, mine: Object) -> Object:
        mine = copy.deepcopy(mine)
        sent = mine["metadata"].get("managedFields")
        self.subject.settle(mine)
        if sent is not None:
            mine["metadata"]["managedFields"] = sent  # an empty list means something
        if self.live is not None:
            kept = ("uid", "creationTimestamp", "resourceVersion", "generation")
            mine["metadata"] |= {key: self.live["metadata"][key] for key in kept if key in self.live["metadata"]}
        return mine

    def took(self, status: int, real: Any) -> bool:
        if status < 300:
            self.steps += 1
            return True
        # Validation is not what is compared here.
        if status == 422 and real.get("details", {}).get("name"):
            self.refused += 1
            return False
        raise Difference(f"{self.story()}\nrefused only by the real server: {real}")

    def same_refusal(self, error: ApiError, status: int, real: Any) -> None:
        self.refused += 1
        mine = error.to_status()
        if status == error.code and "causes" in mine.get("details", {}):
            for side in (mine, real):
                side["details"]["causes"].sort(key=lambda one: (one["message"], one["field"]))
        if status != error.code or mine != {**real, "metadata": {}}:
            raise Difference(f"{self.story()}\nreal {status}: {real}\nmine {error.code}: {mine}")

    def accept(self, real: Object, mine: Object) -> None:
        if plain(real) != plain(mine):
            raise Difference(f"{self.story()}\nreal {plain(real)}\nmine {plain(mine)}")
        if timeless(real) != timeless(mine):
            wanted, got = timeless(real), timeless(mine)
            lines = [f"real {one}" for one in wanted if one not in got] + [
                f"mine {one}" for one in got if one not in wanted
            ]
            raise Difference(f"{self.story()}\n" + "\n".join(lines or [f"order: {wanted} {got}"]))
        if self.live is not None:
            stored = real["metadata"]["resourceVersion"] != self.live["metadata"]["resourceVersion"]
            if stored == unchanged(self.live, mine):
                raise Difference(f"{self.story()}\nstored by the real server: {stored}")
        self.live = real

    def note(self, *words: object) -> None:
        self.log.append(" ".join(map(str, words)))

    def story(self) -> str:
        before = self.live and self.live["metadata"].get("managedFields")
        return f"seed {self.seed} {self.subject.kind.kind}\n" + "\n".join(self.log) + f"\nbefore: {before}"
