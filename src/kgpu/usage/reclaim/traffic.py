"""Pure: requests that inference servers have served, from the metrics pages of their pods, and what follows of them.

A warm model does nothing and is wanted all the same: its own counters of requests say so. Promises: a page is only ever
read for numbers; one that can't be had or read, and a time that was not watched, keep the workload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.kube.port import Object, annotations_of, name_of, namespace_of
from kgpu.usage.reclaim.guards import span

SCRAPE: Final = "prometheus.io/scrape"
PORT: Final = "prometheus.io/port"
PATH: Final = "prometheus.io/path"
SCHEME: Final = "prometheus.io/scheme"
COUNTERS: Final = frozenset({
    "vllm:request_success_total", "sglang:num_requests_total", "tgi_request_count", "nv_inference_request_success",
    "nv_inference_request_failure", ":tensorflow:serving:request_count", "ts_inference_requests_total",
})  # fmt: skip
"""Of vLLM, SGLang, TGI, Triton, TensorFlow Serving and TorchServe: requests since the server began."""
RUNNING: Final = frozenset({
    "vllm:num_requests_running", "vllm:num_requests_waiting", "sglang:num_running_reqs", "sglang:num_queue_reqs",
    "tgi_queue_size",
})  # fmt: skip
"""Requests that are served or wait now."""
MOST_LINES: Final = 100_000
LONGEST_GAP: Final = 300.0
"""Seconds between two readings; after a longer one a pod counts as watched from then on."""
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]{0,199})(?:\{.*\})?[ \t]+([^ \t]{1,40})(?:[ \t]+-?\d{1,20})?\s*")
_PATH: Final = re.compile(r"/[!-~]{0,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MetricsPlace:
    """Where a pod says that its metrics are."""

    namespace: str
    pod: str
    uid: str
    address: str
    port: int
    path: str


def place_of(pod: Object) -> MetricsPlace | None:
    """Where a pod's metrics are by its annotations, None where it has none. Raises ConfigError for what can't be."""
    own = annotations_of(pod)
    if str(own.get(SCRAPE, "")).lower() != "true":
        return None
    port, path, scheme = str(own.get(PORT, "")), str(own.get(PATH, "/metrics")), str(own.get(SCHEME, "http"))
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16):
        raise ConfigError(f"its annotation {PORT} is {port[:20]!r}", "a port", "correct it")
    if not _PATH.fullmatch(path) or scheme != "http":
        raise ConfigError(f"its metrics are at {scheme[:20]!r}, {path[:40]!r}", "a path over http", "correct it")
    address = str((pod.get("status") or {}).get("podIP") or "")
    if not address:
        raise ConfigError("it has no address yet", "status.podIP", "wait")
    uid = str((pod.get("metadata") or {}).get("uid") or "")
    return MetricsPlace(namespace_of(pod), name_of(pod), uid, address, int(port), path)


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What a page says: requests since the server began, and those at work; 0 where it has no such figures."""

    served: float = 0.0
    running: float = 0.0


def read_page(text: str, counters: Collection[str]) -> RequestFigures:
    """The figures of a metrics page; ``counters`` count beside the known ones. Raises ConfigError."""
    lines = text.split("\n", MOST_LINES)
    if len(lines) > MOST_LINES:
        raise ConfigError("its metrics have too many lines", f"at most {MOST_LINES}", "give it a page of its own")
    known = COUNTERS.union(counters)
    served = running = 0.0
    for line in lines:
        found = _SAMPLE.fullmatch(line, 0, 4096) if len(line) <= 4096 else None
        if found is None or (found[1] not in known and found[1] not in RUNNING):
            continue
        value = _number(found[2])
        if found[1] in known:
            served += value
        else:
            running += value
    return RequestFigures(served, running)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e18:
        raise ConfigError(f"its metrics have {one_line(text, 40)} requests", "a number", "see its metrics page")
    return value


@dataclass(slots=True)
class _WatchedPod:
    """``since``: from when on it is watched without a gap; ``grown``: when it was last seen to serve."""

    name: str
    at: float
    since: float
    figures: RequestFigures | None = None
    grown: float | None = None
    problem: str = ""


@dataclass(slots=True)
class RequestWatch:
    """What was seen of pods' requests, by uid; lost with the process, which then has to watch anew."""

    pods: dict[str, _WatchedPod] = field(default_factory=dict)

    def take(self, uid: str, name: str, seen: RequestFigures | str, now: float) -> None:
        """Take what a page says, or why there is none."""
        pod = self.pods.get(uid)
        if isinstance(seen, str):
            pod = self.pods.setdefault(uid, _WatchedPod(name, now, now))
            pod.problem = seen
            return
        if pod is None or pod.problem or not 0 <= now - pod.at <= LONGEST_GAP:
            pod = self.pods[uid] = _WatchedPod(name, now, now, figures=None if pod is None else pod.figures)
        # A counter that is smaller than before has begun anew: the server was restarted, and whoever did wants it.
        if seen.running or (pod.figures is not None and seen.served != pod.figures.served):
            pod.grown = now
        pod.figures, pod.at, pod.problem = seen, now, ""

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        self.pods = {uid: pod for uid, pod in self.pods.items() if uid in uids}

    def kept(self, uids: Iterable[str], now: float, window: float) -> str:
        """Why the requests of these pods keep their workload; "" where they do not."""
        return next((why for uid in uids if (pod := self.pods.get(uid)) and (why := _kept(pod, now, window))), "")


def _kept(pod: _WatchedPod, now: float, window: float) -> str:
    name = one_line(pod.name, 100)
    if pod.problem:
        return f"requests of pod {name} are not known: {pod.problem}"
    if pod.figures is None:
        return f"requests of pod {name} are not known"
    if pod.figures.running:
        return f"pod {name} has {pod.figures.running:g} requests at work"
    if pod.grown is not None and now - pod.grown < window:
        return f"pod {name} has served requests at {stamp_of(pod.grown)}"
    if pod.figures.served and now - pod.since < window:
        watched = span(now - pod.since)
        return f"requests of pod {name} are watched for {watched} only, of {span(window)}"
    return ""
