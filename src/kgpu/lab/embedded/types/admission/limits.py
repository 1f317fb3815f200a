"""LimitRanges: defaults for containers without requests or limits, and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.admission.base import PODS, refused
from kgpu.lab.embedded.types.quota import Usage, pod_amounts

ANNOTATION: Final = "kubernetes.io/limit-ranger"
_CONTAINERS: Final = (("containers", "container"), ("initContainers", "init container"))


def _ranges(review: Review, reads: ObjectLookup) -> list[Object]:
    if review.subresource or review.operation not in {"CREATE", "UPDATE"}:
        return []
    claim = review.kind.key == ("", "persistentvolumeclaims")
    if not claim and (review.kind.key != PODS or review.operation != "CREATE"):
        return []
    return sorted(
        reads.list("", "limitranges", review.namespace), key=lambda limit_range: str(limit_range["metadata"]["name"])
    )


def _parsed(amounts: Object | None) -> Usage:
    return {name: Quantity.parse(text) for name, text in (amounts or {}).items()}


class LimitDefaults:
    """Fills in the requests and limits that containers leave out, and lists them in an annotation."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.kind.key != PODS:
            return
        for limit_range in _ranges(review, reads):
            limits: Object = {}
            requests: Object = {}
            for item in limit_range["spec"].get("limits") or ():
                if item.get("type") == "Container":
                    limits |= item.get("default") or {}
                    requests |= item.get("defaultRequest") or {}
            done = [
                words
                for field, called in _CONTAINERS
                for container in review.obj["spec"].get(field) or ()
                for words in _filled(container, called, requests, limits)
            ]
            if done:
                annotations = review.obj["metadata"].setdefault("annotations", {})
                annotations[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(done)}"


def _filled(container: Object, called: str, requests: Object, limits: Object) -> Iterable[str]:
    resources = container.setdefault("resources", {})
    for field, word, defaults in (("requests", "request", requests), ("limits", "limit", limits)):
        own = resources.get(field) or {}
        missing = {name: amount for name, amount in defaults.items() if name not in own}
        if missing:
            resources[field] = {**own, **missing}
            yield f"{', '.join(sorted(missing))} {word} for {called} {container.get('name', '')}"


class LimitBounds:
    """Refuses requests and limits outside the bounds of a LimitRange."""

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        for limit_range in _ranges(review, reads):
            wrong: list[str] = []
            for item in limit_range["spec"].get("limits") or ():
                wrong += _claim(review.obj, item) if review.kind.key != PODS else _pod(review.obj["spec"], item)
            wrong = list(dict.fromkeys(wrong))
            if wrong:
                raise refused(review, wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]")


def _claim(obj: Object, item: Object) -> Iterable[str]:
    if item.get("type") != "PersistentVolumeClaim":
        return
    requests = _parsed((obj["spec"].get("resources") or {}).get("requests"))
    for name, least in _parsed(item.get("min")).items():
        yield from _least("PersistentVolumeClaim", name, least, requests, {})
    for name, most in _parsed(item.get("max")).items():
        start, own = f"maximum {name} usage per PersistentVolumeClaim is {most}", requests.get(name)
        if own is None:
            yield f"{start}.  No request is specified"
        elif own > most:
            yield f"{start}, but request is {own}"


def _pod(spec: Object, item: Object) -> Iterable[str]:
    kind = item.get("type", "")
    parts: list[tuple[Usage, Usage]] = []
    if kind == "Container":
        parts = [
            (_parsed(container["resources"].get("requests")), _parsed(container["resources"].get("limits")))
            for field, _ in _CONTAINERS
            for container in spec.get(field) or ()
        ]
    elif kind == "Pod":
        parts = [(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))]
    for requests, limits in parts:
        for name, least in _parsed(item.get("min")).items():
            yield from _least(kind, name, least, requests, limits)
        for name, most in _parsed(item.get("max")).items():
            yield from _most(kind, name, most, requests, limits)
        for name, ratio in _parsed(item.get("maxLimitRequestRatio")).items():
            yield from _ratio(kind, name, ratio, requests.get(name), limits.get(name))


def _least(kind: str, name: str, least: Quantity, requests: Usage, limits: Usage) -> Iterable[str]:
    start, own, limit = f"minimum {name} usage per {kind} is {least}", requests.get(name), limits.get(name)
    if own is None:
        yield f"{start}.  No request is specified"
    elif own < least:
        yield f"{start}, but request is {own}"
    elif limit is not None and limit < least:
        yield f"{start}, but limit is {limit}"


def _most(kind: str, name: str, most: Quantity, requests: Usage, limits: Usage) -> Iterable[str]:
    start, own, limit = f"maximum {name} usage per {kind} is {most}", requests.get(name), limits.get(name)
    if limit is None:
        yield f"{start}.  No limit is specified"
    elif limit > most:
        yield f"{start}, but limit is {limit}"
    elif own is not None and own > most:
        yield f"{start}, but request is {own}"


def _ratio(kind: str, name: str, ratio: Quantity, own: Quantity | None, limit: Quantity | None) -> Iterable[str]:
    start = f"{name} max limit to request ratio per {kind} is {ratio}, but"
    if not own:
        yield f"{start} no request is specified or request is 0"
    elif not limit:
        yield f"{start} no limit is specified or limit is 0"
    elif limit.milli * 1000 > ratio.milli * own.milli:
        yield f"{start} provided ratio is {limit.milli / own.milli:f}"
