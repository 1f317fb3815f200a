"""Content negotiation: the media type that a client wants, and the kind instead of the object's own (``as=Table``).

JSON is always offered, YAML to clients that list it first. Protobuf, which clients list first for built-in kinds, is
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import ApiError

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_ANY: Final = frozenset({"*/*", "application/*"})
_AS: Final = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_META: Final = "meta.k8s.io"


@dataclass(frozen=True, slots=True)
class Representation:
    """``kind`` is "" for the object itself; ``version`` is of meta.k8s.io, such as ``v1``."""

    media: str = JSON
    kind: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of an Accept header: the media type and its parameters."""

    media: str
    parameters: dict[str, str]


def clauses(accept: str) -> list[Clause]:
    """The alternatives of an Accept header, those with a higher ``q`` first."""
    weighted: list[tuple[float, Clause]] = []
    for part in accept[:4096].split(","):
        media, *rest = (word.strip() for word in part.split(";"))
        if not media:
            continue
        parameters = {key.strip(): value.strip() for key, _, value in (word.partition("=") for word in rest)}
        try:
            weight = float(parameters.pop("q", "1"))
        except ValueError:
            weight = 0.0
        weighted.append((-weight, Clause(media.lower(), parameters)))
    return [clause for _, clause in sorted(weighted, key=lambda row: row[0])]


def choose(request: ApiRequest, *, watch: bool = False, tables: bool = True) -> Representation:
    """The representation of the answer. Raises ApiError 406 when the client accepts none that is offered.

    ``tables``: whether the resource can be shown as a table.
    """
    offered = "application/json, application/json;stream=watch" if watch else "application/json, application/yaml"
    message = f"406: Not Acceptable\n\nAvailable representations: {offered}"
    accept = request.header("accept")
    if not accept:
        return Representation()
    for clause in clauses(accept):
        media = JSON if clause.media in _ANY else clause.media
        if media not in (JSON, YAML) or (media == YAML and watch):
            continue
        kind = clause.parameters.get("as", "")
        if not kind:
            return Representation(media)
        version = clause.parameters.get("v", "")
        # In the real server the conversion fails, which another part of it reports in other words.
        message = f"only the following media types are accepted: {offered}"
        if kind == "Table" and not tables:
            continue
        if kind in _AS and clause.parameters.get("g") == _META and version in ("v1", "v1beta1"):
            return Representation(media, kind, version)
    raise ApiError(406, "NotAcceptable", message, {})


def pretty(request: ApiRequest) -> bool:
    """Whether to indent the answer for a person: with ``?pretty``, and by default for browsers, curl and wget."""
    if "pretty" in request.query:
        return request.query.text("pretty").lower() in ("1", "t", "true")
    return request.header("user-agent").startswith(("curl", "Wget", "Mozilla/5.0"))
