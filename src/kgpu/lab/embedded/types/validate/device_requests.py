"""References to the requests of a claim, as its constraints, configurations and allocation have them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, syntax

_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


def request_names(devices: Object) -> frozenset[str]:
    """What may refer to a request: its name, and for each of its alternatives ``name/alternative``."""
    names: set[str] = set()
    for request in devices.get("requests") or ():
        name = request.get("name") or ""
        names.add(name)
        names |= {f"{name}/{choice.get('name') or ''}" for choice in request.get("firstAvailable") or ()}
    return frozenset(names)


def reference_rule(known: Collection[str]) -> Callable[[Errors, str, str], None]:
    """The check of one reference to a request."""

    def check(errors: Errors, path: str, name: str) -> None:
        parts = name.split("/")
        if len(parts) <= 2:
            for part in parts:
                syntax(errors, path, part, texts.label)
        if name not in known:
            errors.append(bad_value(path, name, _REFERENCE))

    return check
