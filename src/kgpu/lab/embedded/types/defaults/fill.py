"""Functions that set defaults, only where a field is unset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.status import Object


def fixed(**values: Any) -> Callable[[Object], None]:
    """A defaulter that sets these fields where they are absent (empty strings count as absent)."""

    def fill(obj: Object) -> None:
        for name, value in values.items():
            if obj.get(name) in (None, ""):
                obj[name] = {} if value == {} else value

    return fill


def whole_milli(*fields: str) -> Callable[[Object], None]:
    """A defaulter that rounds the quantities of these resource lists up to thousandths."""

    def fill(obj: Object) -> None:
        for name in fields:
            amounts = obj.get(name)
            if amounts:
                obj[name] = {key: str(Quantity.parse(amount).rounded(-3)) for key, amount in amounts.items()}

    return fill


def both(*functions: Callable[[Object], None]) -> Callable[[Object], None]:
    """A defaulter that calls these one after the other."""

    def fill(obj: Object) -> None:
        for function in functions:
            function(obj)

    return fill
