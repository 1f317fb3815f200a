"""Asks the embedded rules what the API server would be asked over HTTP: create and update, as dry runs.

Answers are ``{"code", "object"}`` or ``{"code", "reason", "message", "causes"}`` without what differs from run to run.
"""

from __future__ import annotations

import re
from typing import Any

from kgpu.lab.embedded.core.model import ApiUser, Call, copied
from kgpu.lab.embedded.crd.conditions import update as with_conditions
from kgpu.lab.embedded.crd.custom_kinds import CustomKinds
from kgpu.lab.embedded.kinds import ApiKind, Kinds
from kgpu.lab.embedded.status import ApiError, invalid
from kgpu.lab.embedded.types.rules import BuiltinRules

Raw = dict[str, Any]
VOLATILE = ("uid", "creationTimestamp", "resourceVersion", "managedFields", "selfLink")
USER = ApiUser("test")


class Stored:
    def __init__(self, obj: Raw) -> None:
        self.obj = obj
        self.namespace = obj["metadata"].get("namespace", "")
        self.name = obj["metadata"]["name"]


class Page:
    def __init__(self, items: list[Stored]) -> None:
        self.items = items


class Api:
    """CRDs registered at once, and the pipeline of a write without store and admission."""

    def __init__(self) -> None:
        self.kinds = Kinds()
        self.custom = CustomKinds(self.kinds)
        self.rules = self.custom.rules_for(BuiltinRules())
        self.crds: list[Raw] = []
        self.custom.attach(self)

    # What CustomKinds asks of a core.
    def on_commit(self, listener: Any) -> None:
        del listener

    def end_watches(self, kind: ApiKind) -> None:
        del kind

    def list(self, kind: ApiKind, namespace: str = "", **_: Any) -> Page:
        return Page([Stored(one) for one in self.crds])

    def install(self, definition: Raw) -> Raw:
        """The CRD as it is once established."""
        made = self.create(definition)
        assert made["code"] == 201, made
        found = with_conditions(made["object"], [])
        assert found is not None
        self.crds.append(found)
        self.custom._follow(found)
        return found

    def kind_of(self, obj: Raw) -> ApiKind:
        kind = self.kinds.of(obj["apiVersion"], obj["kind"])
        assert kind is not None, obj
        return kind

    def create(self, obj: Raw, *, validation: str = "Warn") -> Raw:
        return self._write(copied(obj), None, "", validation)

    def update(self, obj: Raw, old: Raw, subresource: str = "") -> Raw:
        return self._write(copied(obj), old, subresource, "Warn")

    def _write(self, obj: Raw, old: Raw | None, subresource: str, validation: str) -> Raw:
        kind = self.kind_of(obj)
        rules = self.rules(kind)
        call = Call(user=USER, validation=validation)
        try:
            found = rules.decode(kind, obj, call)
            rules.default(kind, found)
            meta = found["metadata"]
            if meta.get("generateName") and not meta.get("name"):
                meta["name"] = meta["generateName"] + "12345"
            if old is not None:
                old = {**old, "metadata": {"resourceVersion": "1", **old["metadata"]}}
                for name in ("uid", "creationTimestamp", "resourceVersion", "generation"):
                    if name in old["metadata"]:
                        meta[name] = old["metadata"][name]
            rules.prepare(kind, found, old, subresource)
            errors = rules.validate(kind, found, old, subresource)
            if errors:
                raise invalid(kind.group, kind.kind, meta.get("name", ""), errors)
        except ApiError as error:
            return answer(error.code, error.to_status(), call.warnings)
        return answer(200 if old is not None else 201, found, call.warnings)


MADE_UP = (
    (re.compile(r"selfType\d+\S*?(?=['),. ])"), "selfType"),
    (re.compile(r'(?<="X-)[a-z0-9]{5}(?=")'), "12345"),  # of generateName
)


def answer(code: int, body: Raw, warnings: list[str]) -> Raw:
    """What is compared."""
    found: Raw = {"code": code}
    if warnings:
        found["warnings"] = list(warnings)
    if body.get("kind") != "Status":
        body = copied(body)
        for name in VOLATILE:
            body["metadata"].pop(name, None)
        if body["kind"] == "CustomResourceDefinition":
            body["status"].pop("conditions", None)
        return {**found, "object": body}
    causes = [
        [one.get("field", ""), plain(one.get("message", ""))] for one in body.get("details", {}).get("causes", ())
    ]
    found |= {"reason": body.get("reason", "")}
    return {**found, "causes": sorted(causes)} if causes else {**found, "message": plain(body["message"])}


def plain(text: str) -> str:
    """Without names that the server makes up."""
    for pattern, name in MADE_UP:
        text = pattern.sub(name, text)
    return text
