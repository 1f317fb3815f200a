"""``pods/log``: the options are checked as the real server does, then the kubelet of the pod's node is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

from kgpu.lab.embedded.http.answers import TEXT, ApiAnswer
from kgpu.lab.embedded.http.kubelets import Kubelets, internal, read_refusal, url_of_kubelet
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import (
    FieldError,
    Object,
    bad_request,
    bad_value,
    forbidden_field,
    invalid,
    unsupported,
)

_NUMBERS: Final = ("sinceSeconds", "tailLines", "limitBytes")
_FLAGS: Final = ("follow", "previous", "timestamps")
_STREAMS: Final = ("All", "Stdout", "Stderr")


def kubelet_query(request: ApiRequest, name: str) -> list[tuple[str, str]]:
    """The query for the kubelet. Raises ApiError 400 and 422 for wrong log options."""
    query = request.query
    numbers = {key: query.number(key) for key in _NUMBERS}
    stream = query.text("stream") or "All"
    errors: list[FieldError] = []
    tail, limit, since = numbers["tailLines"], numbers["limitBytes"], numbers["sinceSeconds"]
    if tail is not None and tail < 0:
        errors.append(bad_value("tailLines", tail, "must be greater than or equal to 0"))
    if limit is not None and limit < 1:
        errors.append(bad_value("limitBytes", limit, "must be greater than 0"))
    if since is not None and query.text("sinceTime"):
        errors.append(forbidden_field("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif since is not None and since < 1:
        errors.append(bad_value("sinceSeconds", since, "must be greater than 0"))
    if stream not in _STREAMS:
        errors.append(unsupported("stream", stream, _STREAMS))
    elif stream != "All" and tail is not None:
        errors.append(forbidden_field("", "`tailLines` and specific `stream` are mutually exclusive for now"))
    if errors:
        raise invalid("", "PodLogOptions", name, errors)
    pairs = [(flag, "true") for flag in _FLAGS if query.flag(flag)]
    pairs += [(key, str(value)) for key, value in numbers.items() if value is not None]
    if query.text("sinceTime"):
        pairs.append(("sinceTime", query.text("sinceTime")))
    return [*pairs, ("stream", stream)]


def container_of(pod: Object, wanted: str) -> str:
    """The name of the wanted container, or of the only one. Raises ApiError 400."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    plain = _names(spec.get("containers"))
    every = [*_names(spec.get("initContainers")), *plain, *_names(spec.get("ephemeralContainers"))]
    if wanted:
        if wanted in every:
            return wanted
        raise bad_request(f"container {wanted} is not valid for pod {name}")
    if len(plain) == 1:
        return plain[0]
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(every)}]")


def _names(containers: Any) -> list[str]:
    return [str(container.get("name")) for container in containers or ()]


async def answer(
    request: ApiRequest, pod: Object, find_node: Callable[[str], Object | None], kubelets: Kubelets
) -> ApiAnswer:
    """The log of a container. ``find_node`` looks up a Node by name. Raises ApiError."""
    metadata = pod["metadata"]
    name = metadata["name"]
    query = kubelet_query(request, name)
    container = container_of(pod, request.query.text("container"))
    node_name = str((pod.get("spec") or {}).get("nodeName") or "")
    if not node_name:
        return ApiAnswer(204, media=TEXT)
    kubelet = url_of_kubelet(node_name, find_node)
    path = "/".join(quote(part, safe="") for part in (metadata["namespace"], name, container))
    url = f"{kubelet}/containerLogs/{path}?{urlencode(query)}"
    try:
        status, body, close = await kubelets.open(url)
    except OSError as error:
        raise internal(str(error)) from error
    if not 200 <= status <= 206:
        try:
            raise await read_refusal(status, body, "pods/log", name)
        finally:
            await close()
    return ApiAnswer(200, media="text/plain", stream=body)
