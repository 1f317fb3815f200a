"""Random small clusters with devices and claims, as JSON of resource.k8s.io/v1: many features together, few of each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]
NODE: Final = "node-1"
LABELS: Final = {"zone": "a", "kubernetes.io/hostname": NODE}
DRIVERS: Final = ("gpu.example.com", "nic.example.com")
GROUP: Final = "common.example.com/group"
_GATE_NAMES: Final = (
    "AdminAccess", "ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "PartitionableDevices",
    "PrioritizedList",
)  # fmt: skip
_DEFAULT: Final = ("AdminAccess", "PrioritizedList")
_GATES: Final[tuple[tuple[str, ...], ...]] = (
    (), _DEFAULT, _DEFAULT, (*_DEFAULT, "DeviceTaints"), (*_DEFAULT, "PartitionableDevices"),
    (*_DEFAULT, "PartitionableDevices", "DeviceTaints"), (*_DEFAULT, "ConsumableCapacity"), _GATE_NAMES, _GATE_NAMES,
    (*_DEFAULT, "DeviceBindingAndStatus", "DeviceTaints"),
)  # fmt: skip
_SELECTORS: Final = (
    'device.driver == "gpu.example.com"',
    'device.attributes["gpu.example.com"].?model.orValue("a") == "a"',
    'has(device.attributes["gpu.example.com"].index) && device.attributes["gpu.example.com"].index > 1',
    'device.attributes["common.example.com"].?group.orValue("x") in ["x", "y"]',
    'has(device.attributes["gpu.example.com"].fast) && device.attributes["gpu.example.com"].fast',
    'device.attributes["gpu.example.com"].?fast.orValue(true)',
    'device.capacity["gpu.example.com"].?memory.orValue(quantity("8Gi")).compareTo(quantity("10Gi")) >= 0',
    '!("nowhere.example.com" in device.attributes) && !has(device.attributes["nowhere.example.com"].thing)',
    "true", "true", "false", "device.attributes.size() > 0",
)  # fmt: skip
_RISKY: Final = (
    'device.attributes["gpu.example.com"].model == "a"',
    'device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.5.0"))',
    'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("10Gi"))',
    'cel.bind(own, device.attributes["gpu.example.com"], own.model != "b")',
    'device.capacity["gpu.example.com"].memory >= quantity("10Gi")',
    'device.attributes["gpu.example.com"].model',
    "device.allowMultipleAllocations",
)


class Clusters:
    """A stream of cases, the same for the same seed."""

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))

    def one_in(self, times: int) -> bool:
        return self.random.randrange(times) == 0

    def case(self) -> Json:
        gates = self.random.choice(_GATES)
        slices, devices = self._slices(gates)
        return {
            "Features": dict.fromkeys(gates, True),
            "Node": {"metadata": {"name": NODE, "labels": LABELS}},
            "Slices": slices,
            "Classes": [self._class(name) for name in ("any", "gpu")],
            "Claims": [self._claim(f"claim-{position}", gates) for position in range(self.random.choice((1, 1, 2, 3)))],
            "Held": [self._held(key, gates) for key in devices if self.one_in(6)],
        }

    def _slices(self, gates: tuple[str, ...]) -> tuple[list[Json], list[tuple[str, str, str]]]:
        slices: list[Json] = []
        keys: list[tuple[str, str, str]] = []
        for number in range(self.random.choice((1, 1, 2, 3))):
            driver = self.random.choice((*DRIVERS, DRIVERS[0]))
            pool = f"pool-{number}" if not self.one_in(6) else "pool"
            count = self.random.choice((1, 1, 2, 3))
            counters = "PartitionableDevices" in gates and self.one_in(2)
            if counters:
                slices.append(self._slice((driver, pool), f"{number}-9", count + 1, self._counter_slice()))
            names = [f"dev-{at}" for at in range(8)]
            for at in range(count):
                if self.one_in(30):
                    continue
                own = [names.pop(0) for _ in range(self.random.choice((1, 2, 2, 3)) if len(names) > 2 else 1)]
                if self.one_in(40):
                    own.append("dev-0")
                keys += [(driver, pool, name) for name in own]
                body = {"devices": [self._device(name, gates, counters=counters) for name in own]}
                self._reach(body, gates)
                slices.append(self._slice((driver, pool), f"{number}-{at}", count + counters, body))
        if self.one_in(4):
            self.random.shuffle(slices)
        return slices, list(dict.fromkeys(keys))

    def _slice(self, key: tuple[str, str], name: str, count: int, body: Json) -> Json:
        generation = 2 if self.one_in(40) else 1
        pool = {"name": key[1], "generation": generation, "resourceSliceCount": count}
        return {"metadata": {"name": f"slice-{name}"}, "spec": {"driver": key[0], "pool": pool, **body}}

    def _reach(self, body: Json, gates: tuple[str, ...]) -> None:
        if "PartitionableDevices" in gates and self.one_in(4):
            body["perDeviceNodeSelection"] = True
            for device in body["devices"]:
                device |= self._where()
        else:
            body |= self._where()

    def _where(self) -> Json:
        zone = {"key": "zone", "operator": "In", "values": [self.random.choice(("a", "a", "a", "b"))]}
        named = {"key": "kubernetes.io/hostname", "operator": "Exists"}
        choices: tuple[Json, ...] = (
            {"nodeName": NODE}, {"nodeName": NODE}, {"nodeName": NODE}, {"allNodes": True}, {"nodeName": "node-2"},
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}},
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone, named]}]}},
        )  # fmt: skip
        return self.random.choice(choices)

    def _counter_slice(self) -> Json:
        sets = [
            {"name": f"set-{number}", "counters": {"memory": {"value": f"{self.random.choice((20, 40))}Gi"},
                                                   "slices": {"value": str(self.random.choice((2, 3, 7)))}}}
            for number in range(2)
        ]  # fmt: skip
        return {"sharedCounters": sets, "nodeName": NODE}

    def _device(self, name: str, gates: tuple[str, ...], *, counters: bool) -> Json:
        attributes: Json = {
            "model": {"string": self.random.choice("ab")},
            "index": {"int": int(name[-1])},
            "version": {"version": self.random.choice(("1.0.0", "2.0.0", "2.0.0-rc.1"))},
            GROUP: {"string": self.random.choice("xyz")},
            "fast": {"bool": self.one_in(2)},
        }
        for key in list(attributes):
            if self.one_in(14):
                del attributes[key]
        device: Json = {"name": name, "attributes": attributes}
        if not self.one_in(12):
            device["capacity"] = {"memory": {"value": self.random.choice(("8Gi", "16Gi", "40Gi"))}}
        if "DeviceTaints" in gates and self.one_in(3):
            effect = self.random.choice(("NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": "sick", "value": self.random.choice(("very", "")), "effect": effect}]
        if counters and not self.one_in(5):
            device["consumesCounters"] = [self._use() for _ in range(1 if not self.one_in(6) else 2)]
        if "ConsumableCapacity" in gates and self.one_in(2):
            self._share(device)
        if self.one_in(8):
            device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
        if "DeviceBindingAndStatus" in gates and self.one_in(5):
            device["bindsToNode"] = True
        return device

    def _use(self) -> Json:
        counters = {"memory": {"value": f"{self.random.choice((5, 10, 20))}Gi"}, "slices": {"value": "1"}}
        wanted = self.random.choice(("set-0", "set-0", "set-1", "set-0" if not self.one_in(10) else "set-7"))
        return {"counterSet": wanted, "counters": counters}

    def _share(self, device: Json) -> None:
        device["allowMultipleAllocations"] = True
        for capacity in device.get("capacity", {}).values():
            if self.one_in(2):
                capacity["requestPolicy"] = self.random.choice((
                    {"default": "4Gi", "validRange": {"min": "2Gi", "max": "8Gi", "step": "2Gi"}},
                    {"default": "2Gi", "validRange": {"min": "1Gi"}},
                    {"default": "4Gi", "validValues": ["2Gi", "4Gi", "8Gi"]},
                    {"default": "4Gi"},
                ))  # fmt: skip

    def _class(self, name: str) -> Json:
        spec: Json = {}
        if name == "gpu":
            spec["selectors"] = [{"cel": {"expression": _SELECTORS[0]}}]
        if self.one_in(2):
            parameters = {"kind": "Setting", "of": name}
            spec["config"] = [{"opaque": {"driver": DRIVERS[0], "parameters": parameters}}]
        return {"metadata": {"name": name}, "spec": spec}

    def _claim(self, name: str, gates: tuple[str, ...]) -> Json:
        requests = [self._request(f"r{position}", gates) for position in range(self.random.choice((1, 1, 2, 3)))]
        names = [request["name"] for request in requests]
        names += [f"{request['name']}/c0" for request in requests if "firstAvailable" in request]
        devices: Json = {"requests": requests}
        if self.one_in(3):
            devices["constraints"] = [self._constraint(names, gates) for _ in range(self.random.choice((1, 1, 2)))]
        if self.one_in(3):
            some = self.random.sample(names, k=self.random.randint(0, len(names)))
            opaque = {"driver": DRIVERS[0], "parameters": {"kind": "Setting", "of": name}}
            devices["config"] = [{"opaque": opaque, **({"requests": some} if some else {})}]
        return {"metadata": {"name": name, "namespace": "team"}, "spec": {"devices": devices}}

    def _constraint(self, names: list[str], gates: tuple[str, ...]) -> Json:
        kinds = ["matchAttribute"] * 4 + ["distinctAttribute"] * (
            6 if "ConsumableCapacity" in gates else self.one_in(4)
        )
        attributes = (GROUP, "gpu.example.com/model", "gpu.example.com/index", "gpu.example.com/version")
        found: Json = {self.random.choice(kinds): self.random.choice(attributes)}
        if self.one_in(2):
            found["requests"] = self.random.sample(names, k=self.random.randint(1, len(names)))
        return found

    def _request(self, name: str, gates: tuple[str, ...]) -> Json:
        if "PrioritizedList" in gates and self.one_in(4):
            choices = [{"name": f"c{at}", **self._ask(gates)} for at in range(self.random.choice((1, 2, 3)))]
            for choice in choices:
                choice.pop("adminAccess", None)
            return {"name": name, "firstAvailable": choices}
        return {"name": name, "exactly": self._ask(gates)}

    def _ask(self, gates: tuple[str, ...]) -> Json:
        name = self.random.choice(("any", "any", "gpu", "gpu", "gpu")) if not self.one_in(80) else "none"
        ask: Json = {"deviceClassName": name}
        if self.one_in(6):
            ask["allocationMode"] = "All"
        else:
            ask |= {"allocationMode": "ExactCount", "count": self.random.choice((1, 1, 1, 2, 2, 3, 4, 33))}
            if ask["count"] == 33 and not self.one_in(8):
                ask["count"] = self.random.choice((1, 16))
        if self.one_in(2):
            ask["selectors"] = [
                {"cel": {"expression": self.random.choice(_RISKY if self.one_in(9) else _SELECTORS)}}
                for _ in range(self.random.choice((1, 1, 2)))
            ]
        if self.one_in(10) and "AdminAccess" in gates:
            ask["adminAccess"] = True
        if self.one_in(3):
            ask["tolerations"] = [self.random.choice((
                {"operator": "Exists"}, {"key": "sick", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "sick", "operator": "Equal", "value": "very"}, {"key": "other", "operator": "Exists"},
            ))]  # fmt: skip
        if "ConsumableCapacity" in gates and self.one_in(2):
            wanted = {
                self.random.choice(("memory", "memory", "memory", "cores")): self.random.choice(("1Gi", "3Gi", "9Gi"))
            }
            ask["capacity"] = {"requests": wanted}
        return ask

    def _held(self, key: tuple[str, str, str], gates: tuple[str, ...]) -> Json:
        driver, pool, device = key
        found: Json = {"Driver": driver, "Pool": pool, "Device": device}
        if "ConsumableCapacity" in gates and self.one_in(2):
            found |= {"ShareID": "share", "Consumed": {"memory": self.random.choice(("1Gi", "6Gi"))}}
        return found


def held_claims(case: Mapping[str, Any]) -> list[Json]:
    """The claims that hold what ``Held`` of a case says, one for each device."""
    claims: list[Json] = []
    for number, held in enumerate(case["Held"]):
        result = {key.lower(): held[key] for key in ("Driver", "Pool", "Device")}
        if "ShareID" in held:
            result |= {"shareID": held["ShareID"], "consumedCapacity": held["Consumed"]}
        allocation = {"devices": {"results": [result]}}
        claims.append(
            {"metadata": {"name": f"held-{number}", "namespace": "team"}, "status": {"allocation": allocation}}
        )
    return claims
