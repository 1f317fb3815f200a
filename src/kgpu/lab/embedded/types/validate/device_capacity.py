"""How much of a shared device's capacity one request may have: listed amounts, or a range with steps."""

from __future__ import annotations

import itertools
from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate.base import Errors, quantity
from kgpu.lab.embedded.types.validate.devices import unique

_MOST_VALUES: Final = 10
_BOTH: Final = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'


def request_policy(errors: Errors, at: str, capacity: Object) -> None:
    """Check the policy of a capacity that several allocations may share."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return
    path = f"{at}.requestPolicy"
    values, span, default = policy.get("validValues"), policy.get("validRange"), policy.get("default")
    if values and span is not None:
        errors.append(forbidden_field(path, _BOTH))
        return
    field = "validValues" if values else "validRange"
    if not values and span is None:
        return
    if default is None:
        errors.append(required(f"{path}.default", f"required when {field} is defined"))
        return
    most = quantity(capacity.get("value") or "0")
    if values:
        _values(errors, f"{path}.{field}", [quantity(text) for text in values], quantity(default), most)
    else:
        _range(errors, f"{path}.{field}", span, quantity(default), most)


def _values(errors: Errors, path: str, values: list[Quantity], default: Quantity, most: Quantity) -> None:
    for index, (one, following) in enumerate(itertools.pairwise(values), start=1):
        if one > following:
            errors.append(bad_value(f"{path}[{index}]", str(following), "values must be sorted in ascending order"))

    def check(errors: Errors, at: str, option: Quantity) -> None:
        if option > most:
            errors.append(bad_value(at, str(option), f"option is larger than capacity value: {most}"))

    unique(errors, path, values, check, most=_MOST_VALUES, key=lambda option: str(option.value))
    if len(values) > _MOST_VALUES or all(option.nanos != default.nanos for option in values):
        errors.append(bad_value(path, str(default), "default value is not valid according to the requestPolicy"))


def _range(errors: Errors, path: str, span: Object, default: Quantity, most: Quantity) -> None:
    if span.get("min") is None:
        errors.append(required(f"{path}.min", "required when validRange is defined"))
        return
    low = quantity(span["min"])
    high = quantity(span["max"]) if span.get("max") is not None else None
    if low > most:
        errors.append(bad_value(f"{path}.min", str(low), f"min is larger than capacity value: {most}"))
    if default < low:
        errors.append(bad_value(f"{path}.min", str(default), f"default is less than min: {low}"))
    if high is not None:
        for wrong, value, words in (
            (low > high, low, f"min is larger than max: {high}"),
            (high > most, high, f"max is larger than capacity value: {most}"),
            (default > high, default, f"default is more than max: {high}"),
        ):
            if wrong:
                errors.append(bad_value(f"{path}.max", str(value), words))
    if span.get("step") is not None:
        step = quantity(span["step"])
        if low + step > most:
            words = f"one step {low + step} is larger than capacity value: {most}"
            errors.append(bad_value(f"{path}.step", str(step), words))
        for value in (default, *([] if high is None else [high])):
            if step.value and (value.value - low.value) % step.value:
                words = f"value is not a multiple of a given step ({step}) from ({low})"
                errors.append(bad_value(f"{path}.step", str(value), words))
