"""A container's environment, command and arguments from its pod, ConfigMaps and Secrets; pure, the kubelet's rules.

``needed`` names the objects that must be fetched, ``build`` puts everything together: ``envFrom`` first, then ``env``
in order, ``$(NAME)`` replaced by what is known by then, ``$$`` for a plain dollar sign.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kgpu.base.errors import LabError
from kgpu.base.quantity import Quantity
from kgpu.kube.port import Object

CONFIG_MAP: Final = "configmap"
SECRET: Final = "secret"  # noqa: S105 - a kind of object
Ref = tuple[str, str]
"""(CONFIG_MAP or SECRET, name)."""
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^()]*)\)")
_SUBSCRIPT: Final = re.compile(r"metadata\.(annotations|labels)\['([^']*)'\]")


class MissingReferenceError(LabError):
    """A referenced object or key does not exist; ``what`` is the kubelet's wording (CreateContainerConfigError)."""


def expand(text: str, known: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where NAME is known; ``$$`` is one dollar sign."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return _REFERENCE.sub(one, text)


def names_in(text: str) -> list[str]:
    """The variables that ``expand`` looks up."""
    return [match[1] for match in _REFERENCE.finditer(text) if match[0] != "$$"]


def needed(container: Object) -> set[Ref]:
    """The ConfigMaps and Secrets that the environment refers to."""
    refs: set[Ref] = set()
    for source in container.get("envFrom") or ():
        for key, kind in (("configMapRef", CONFIG_MAP), ("secretRef", SECRET)):
            if key in source:
                refs.add((kind, source[key]["name"]))
    for entry in container.get("env") or ():
        value_from = entry.get("valueFrom") or {}
        for key, kind in (("configMapKeyRef", CONFIG_MAP), ("secretKeyRef", SECRET)):
            if key in value_from:
                refs.add((kind, value_from[key]["name"]))
    return refs


def decode(kind: str, obj: Object) -> dict[str, bytes]:
    """A ConfigMap's or Secret's content by key."""
    binary = {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}
    data = obj.get("data") or {}
    if kind == SECRET:
        return {key: base64.b64decode(value or "") for key, value in data.items()}
    return {**{key: str(value).encode() for key, value in data.items()}, **binary}


def build(
    pod: Object, container: Object, *, base: Mapping[str, str], objects: Mapping[Ref, Object | None],
    facts: Mapping[str, str], allocatable: Mapping[str, str],
) -> dict[str, str]:  # fmt: skip
    """The environment. ``facts`` answer status.podIP, status.hostIP and spec.nodeName; ``allocatable`` is the node's.

    Raises MissingReferenceError for a reference without an object or key that is not optional.
    """
    variables = dict(base)
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        for key, kind in (("configMapRef", CONFIG_MAP), ("secretRef", SECRET)):
            if key in source:
                data = _data(kind, source[key], objects)
                variables |= {f"{prefix}{name}": value.decode(errors="replace") for name, value in sorted(data.items())}
    for entry in container.get("env") or ():
        value = _value(pod, container, entry, variables, objects=objects, facts=facts, allocatable=allocatable)
        if value is not None:
            variables[entry["name"]] = value
    return variables


def _value(
    pod: Object, container: Object, entry: Object, known: Mapping[str, str], *, objects: Mapping[Ref, Object | None],
    facts: Mapping[str, str], allocatable: Mapping[str, str],
) -> str | None:  # fmt: skip
    source = entry.get("valueFrom")
    if not source:
        return expand(str(entry.get("value") or ""), known)
    readers: dict[str, Callable[[Any], str | None]] = {
        "fieldRef": lambda ref: field(pod, str(ref["fieldPath"]), facts),
        "resourceFieldRef": lambda ref: resource_field(pod, container, ref, allocatable),
        "configMapKeyRef": lambda ref: _key(pod, CONFIG_MAP, ref, objects),
        "secretKeyRef": lambda ref: _key(pod, SECRET, ref, objects),
    }
    for name, read in readers.items():
        if name in source:
            return read(source[name])
    return ""


def _data(kind: str, ref: Object, objects: Mapping[Ref, Object | None]) -> dict[str, bytes]:
    obj = objects.get((kind, ref["name"]))
    if obj is not None:
        return decode(kind, obj)
    if ref.get("optional"):
        return {}
    raise MissingReferenceError(f'{kind} "{ref["name"]}" not found', "an object of that name", f"create the {kind}")


def _key(pod: Object, kind: str, ref: Object, objects: Mapping[Ref, Object | None]) -> str | None:
    data = _data(kind, ref, objects)
    if ref["key"] in data:
        return data[ref["key"]].decode(errors="replace")
    if ref.get("optional"):
        return None
    shown = {CONFIG_MAP: "ConfigMap", SECRET: "Secret"}[kind]
    namespace = pod["metadata"]["namespace"]
    raise MissingReferenceError(
        f"couldn't find key {ref['key']} in {shown} {namespace}/{ref['name']}", "that key", f"add it to the {kind}"
    )


def field(pod: Object, path: str, facts: Mapping[str, str]) -> str:
    """A field of the pod as the downward API gives it."""
    if match := _SUBSCRIPT.fullmatch(path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        entries = pod["metadata"].get(path.removeprefix("metadata.")) or {}
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(entries.items()))
    if path in facts:
        return facts[path]
    value: Any = pod
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _escaped(text: str) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_field(pod: Object, container: Object, ref: Object, allocatable: Mapping[str, str]) -> str:
    """A container's request or limit in units of the divisor, rounded up; a missing limit is the node's amount."""
    name = ref.get("containerName") or container["name"]
    spec = pod["spec"]
    every = (*(spec.get("initContainers") or ()), *spec["containers"])
    target = next((candidate for candidate in every if candidate["name"] == name), container)
    kind, _, resource = str(ref["resource"]).partition(".")
    resources = target.get("resources") or {}
    text = (resources.get(kind) or {}).get(resource)
    if text is None and kind == "limits":
        text = allocatable.get(resource)
    amount = Quantity.parse(text if text is not None else "0")
    divisor = Quantity.parse(ref.get("divisor") or "1")
    unit = divisor.milli or 1000
    return str(math.ceil(amount.milli / unit))


def command(
    container: Object, entrypoint: tuple[str, ...], default: tuple[str, ...], env: Mapping[str, str]
) -> list[str]:
    """What is run: the pod's command and args over the image's, with ``$(NAME)`` replaced."""
    first = container.get("command")
    second = container.get("args")
    if first:
        words = [*first, *(second or ())]
    elif second:
        words = [*entrypoint, *second]
    else:
        words = [*entrypoint, *default]
    return [expand(str(word), env) for word in words]
