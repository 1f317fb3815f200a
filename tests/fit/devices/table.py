"""The rows of ``cases.yaml`` as cases for the allocators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import yaml

from tests.fit.devices.generate import LABELS, NODE, Json

DRIVER: Final = "gpu.example.com"
_DEFAULT_GATES: Final = ("AdminAccess", "PrioritizedList")
_SLICE_KEYS: Final = frozenset({"driver", "pool", "devices", "node", "of", "generation", "counters"})
_ASK_KEYS: Final = {"class": "deviceClassName", "mode": "allocationMode", "admin": "adminAccess"}


def rows() -> list[Json]:
    loaded: list[Json] = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())
    return loaded


def case(row: Json) -> Json:
    counts = Counter((piece.get("driver"), piece["pool"]) for piece in row["slices"])
    shares = row.get("shares", {}).items()
    return {
        "Features": dict.fromkeys(row.get("gates", _DEFAULT_GATES), True),
        "Node": {"metadata": {"name": NODE, "labels": LABELS}},
        "Slices": [
            _slice(number, piece, counts[piece.get("driver"), piece["pool"]])
            for number, piece in enumerate(row["slices"])
        ],
        "Classes": [_class(name, spec) for name, spec in row.get("classes", {"any": {}}).items()],
        "Claims": [_claim(number, claim) for number, claim in enumerate(row["claims"])],
        "Held": [
            *(_held(path) for path in row.get("held", ())),
            *({**_held(path), "ShareID": "share", "Consumed": {"memory": amount}} for path, amount in shares),
        ],
    }


def _held(path: str) -> Json:
    pool, device = path.split("/")
    return {"Driver": DRIVER, "Pool": pool, "Device": device}


def _slice(number: int, piece: Json, count: int) -> Json:
    node = piece.get("node", NODE)
    devices = piece.get("devices", ())
    devices = [f"d{at}" for at in range(devices)] if isinstance(devices, int) else devices
    pool = {
        "name": piece["pool"],
        "generation": piece.get("generation", 1),
        "resourceSliceCount": piece.get("of", count),
    }
    spec = {
        "driver": piece.get("driver", DRIVER),
        "pool": pool,
        **{key: piece[key] for key in piece.keys() - _SLICE_KEYS},
    }
    spec["devices"] = [device if isinstance(device, dict) else {"name": device} for device in devices]
    if node:
        spec["nodeName"] = node
    if "counters" in piece:
        spec["sharedCounters"] = [
            {"name": name, "counters": {counter: {"value": amount} for counter, amount in counters.items()}}
            for name, counters in piece["counters"].items()
        ]
    return {"metadata": {"name": f"slice-{number}"}, "spec": spec}


def _selectors(expressions: list[str]) -> list[Json]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def _opaque(parameters: Any) -> Json:
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def _class(name: str, spec: Json) -> Json:
    made: Json = {"selectors": _selectors(spec["selectors"])} if "selectors" in spec else {}
    if "config" in spec:
        made["config"] = [_opaque(spec["config"])]
    return {"metadata": {"name": name}, "spec": made}


def _claim(number: int, claim: Json) -> Json:
    devices: Json = {"requests": [_request(request) for request in claim["requests"]]}
    if "constraints" in claim:
        devices["constraints"] = claim["constraints"]
    if "config" in claim:
        devices["config"] = [{**_opaque({"at": at}), **entry} for at, entry in enumerate(claim["config"])]
    return {"metadata": {"name": f"claim-{number}", "namespace": "team"}, "spec": {"devices": devices}}


def _request(request: Json) -> Json:
    if "choices" in request:
        return {
            "name": request["name"],
            "firstAvailable": [{"name": choice["name"], **_ask(choice)} for choice in request["choices"]],
        }
    return {"name": request["name"], "exactly": _ask(request)}


def _ask(row: Json) -> Json:
    ask: Json = {"deviceClassName": "any", "allocationMode": "ExactCount"}
    ask |= {_ASK_KEYS.get(key, key): said for key, said in row.items() if key not in ("name", "choices")}
    if ask["allocationMode"] == "ExactCount":
        ask.setdefault("count", 1)
    if "selectors" in ask:
        ask["selectors"] = _selectors(ask["selectors"])
    if "capacity" in ask:
        ask["capacity"] = {"requests": ask["capacity"]}
    return ask


def shortly(answer: Any) -> Any:
    """What an allocator decided, in the words of ``expect``."""
    if not isinstance(answer, list):
        return "none" if answer is None else answer
    return [
        [f"{result['request']}={result['pool']}/{result['device']}" for result in status["devices"]["results"]]
        for status in answer
    ]
