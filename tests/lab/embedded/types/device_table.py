"""Good and bad claims, templates, classes and slices, as ``table`` has them for the other kinds.

The real server judges them with DRA's gates on that are off in 1.35 (``tests/lab/real/test_embedded_devices.py``).
"""

from __future__ import annotations

from typing import Any

from tests.lab.embedded.types import device_status_table
from tests.lab.embedded.types.device_objects import CLAIM, DRIVER, EXACT, REQUEST, TERM, UID, kind
from tests.lab.embedded.types.row import Object, Row, laid, rows_of

TEMPLATE = kind("ResourceClaimTemplate", {"spec": CLAIM["spec"]})
CLASS = kind("DeviceClass", {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]})
SLICE = kind(
    "ResourceSlice",
    {
        "driver": DRIVER,
        "nodeName": "n1",
        "pool": {"name": "n1", "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
)
COUNTERS = kind(
    "ResourceSlice",
    {"driver": DRIVER, "nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 1},
     "sharedCounters": [{"name": "set", "counters": {"memory": {"value": "80Gi"}}}]},
)  # fmt: skip


def devices(**over: Any) -> Object:
    return {"spec": {"devices": over}}


def requests(*rows: Object) -> Object:
    return devices(requests=list(rows))


def exactly(**over: Any) -> Object:
    return requests({"name": "gpu", "exactly": {**EXACT, **over}})


def selected(*texts: str) -> Object:
    return exactly(selectors=[{"cel": {"expression": text}} for text in texts])


def choices(*rows: Object) -> Object:
    return requests({"name": "gpu", "firstAvailable": list(rows)})


def choice(name: str, **over: Any) -> Object:
    return {"name": name, **EXACT, **over}


def tolerated(**over: Any) -> Object:
    return exactly(tolerations=[over])


def configured(parameters: Any, driver: str = DRIVER, **over: Any) -> Object:
    return devices(config=[{"opaque": {"driver": driver, "parameters": parameters}, **over}])


def constrained(**over: Any) -> Object:
    return devices(constraints=[over])


def sliced(**over: Any) -> Object:
    return {"spec": over}


def device(**over: Any) -> Object:
    return sliced(devices=[{"name": "gpu-0", **over}])


def attribute(**over: Any) -> Object:
    return device(attributes={"a": over})


def policy(value: str = "10Gi", **over: Any) -> Object:
    return device(allowMultipleAllocations=True, capacity={"memory": {"value": value, "requestPolicy": over}})


def placed(**over: Any) -> Object:
    return {"spec": {"nodeName": None, "perDeviceNodeSelection": True, "devices": [{"name": "gpu-0", **over}]}}


def counted(**over: Any) -> Object:
    return sliced(sharedCounters=[{"name": "set", "counters": {"memory": {"value": "80Gi"}}, **over}])


def using(*rows: Object) -> Object:
    return device(consumesCounters=list(rows))


USE: Object = {"counterSet": "set", "counters": {"memory": {"value": "10Gi"}}}

CREATES: dict[str, tuple[Object, dict[str, Object]]] = {
    "claim": (CLAIM, {
        "plain": {},
        "empty": {"spec": {"=": {}}},
        "name": {"metadata": {"name": "A"}},
        "finalizer": {"metadata": {"finalizers": ["x"]}},
        "protected": {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}},
        "status": {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": UID}]}},
        "request-name": requests({"name": "GPU", "exactly": EXACT}),
        "request-no-name": requests({"exactly": EXACT}),
        "request-dots": requests({"name": "a.b", "exactly": EXACT}),
        "request-twice": requests(REQUEST, REQUEST),
        "many-requests": requests(*({"name": f"r{number}", "exactly": EXACT} for number in range(33))),
        "no-class": requests({"name": "gpu", "exactly": {}}),
        "class-name": exactly(deviceClassName="A_B"),
        "neither": requests({"name": "gpu"}),
        "both": requests({**REQUEST, "firstAvailable": [choice("a")]}),
        "choices": choices(choice("a"), choice("b", count=2)),
        "nine-choices": choices(*(choice(f"c{number}") for number in range(9))),
        "choice-twice": choices(choice("a"), choice("a")),
        "choice-name": choices(choice("A")),
        "choice-no-class": choices({"name": "a"}),
        "choice-selector": choices(choice("a", selectors=[{"cel": {"expression": "1"}}])),
        "all": exactly(allocationMode="All"),
        "all-count": exactly(allocationMode="All", count=2),
        "count": exactly(allocationMode="ExactCount", count=-1),
        "mode": exactly(allocationMode="Some"),
        "admin": exactly(adminAccess=True),
        "admin-no-class": exactly(adminAccess=True, deviceClassName=""),
        "not-admin": exactly(adminAccess=False),
        "capacity": exactly(capacity={"requests": {"memory": "10Gi"}}),
        "many-selectors": selected(*["true"] * 33),
        "no-cel": exactly(selectors=[{}]),
        "cel": selected("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"),
        "cel-attribute": selected("device.attributes['gpu.nvidia.com'].type == 'gpu'"),
        "cel-bind": selected("cel.bind(d, device.attributes['gpu.nvidia.com'], d.a && d.b)"),
        "cel-semver": selected("device.attributes['gpu.nvidia.com'].v.isGreaterThan(semver('1.2.3'))"),
        "cel-bare": selected("device.attributes['gpu.nvidia.com'].healthy"),
        "cel-empty": selected(""),
        "cel-syntax": selected("device.driver =="),
        "cel-field": selected("device.memory > 1"),
        "cel-quantity": selected("device.capacity['gpu.nvidia.com'].memory >= quantity('40Gi')"),
        "cel-number": selected("device.capacity['gpu.nvidia.com'].memory > 40"),
        "cel-string": selected("device.driver == 5"),
        "cel-result": selected("device.driver"),
        "cel-map": selected("device.attributes"),
        "cel-list": selected("[]"),
        "cel-has": selected("has(device)"),
        "cel-sign-of": selected("sign(device.capacity['gpu.nvidia.com'].memory) > 0"),
        "cel-unknown": selected("gpu.memory > 1"),
        "cel-function": selected("memory(device)"),
        "cel-long": selected("true" + " " * 10240),
        "tolerations": tolerated(key="a", operator="Exists", effect="NoExecute"),
        "toleration-all": tolerated(operator="Exists"),
        "toleration-key": tolerated(key="a b", operator="Exists"),
        "toleration-value": tolerated(key="a", operator="Exists", value="b"),
        "toleration-equal": tolerated(key="a", operator="Equal", value="b c"),
        "toleration-operator": tolerated(key="a", operator="In"),
        "toleration-default": tolerated(key="a", value="b"),
        "toleration-effect": tolerated(key="a", operator="Exists", effect="PreferNoSchedule"),
        "toleration-none": tolerated(key="a", operator="Exists", effect="None"),
        "match": constrained(matchAttribute="gpu.nvidia.com/parentUUID"),
        "distinct": constrained(distinctAttribute="gpu.nvidia.com/parentUUID"),
        "no-attribute": constrained(requests=["gpu"]),
        "match-no-domain": constrained(matchAttribute="parentUUID"),
        "match-empty": constrained(matchAttribute=""),
        "match-domain": constrained(matchAttribute="/a"),
        "match-no-name": constrained(matchAttribute="a.b/"),
        "match-name": constrained(matchAttribute="a.b/c-d"),
        "match-long": constrained(matchAttribute="a.b/" + "c" * 33),
        "match-unknown": constrained(matchAttribute="a.b/c", requests=["other"]),
        "match-twice": constrained(matchAttribute="a.b/c", requests=["gpu", "gpu"]),
        "match-choice": {"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": [choice("a")]}], "constraints": [{"matchAttribute": "a.b/c", "requests": ["gpu/a", "gpu"]}]}}},
        "match-no-choice": constrained(matchAttribute="a.b/c", requests=["gpu/a"]),
        "match-slashes": constrained(matchAttribute="a.b/c", requests=["gpu/a/b"]),
        "match-odd": constrained(matchAttribute="a.b/c", requests=["GPU"]),
        "many-constraints": devices(constraints=[{"matchAttribute": "a.b/c"}] * 33),
        "config": configured({"apiVersion": "a/v1", "kind": "K"}),
        "config-large": configured({"a": "b" * 10 * 1024}),
        "config-null": configured(None),
        "config-empty": configured({}),
        "config-driver": configured({"a": 1}, "A_B"),
        "config-upper": configured({"a": 1}, "GPU.nvidia.com"),
        "config-no-driver": configured({"a": 1}, ""),
        "config-long-driver": configured({"a": 1}, "a" * 64),
        "config-no-opaque": devices(config=[{}]),
        "config-unknown": configured({"a": 1}, requests=["other"]),
        "many-configs": devices(config=[{"opaque": {"driver": "a", "parameters": {"a": 1}}}] * 33),
    }),
    "claim-template": (TEMPLATE, {
        "plain": {},
        "name": {"metadata": {"name": "A"}},
        "metadata": {"spec": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}},
        "labels": {"spec": {"metadata": {"labels": {"a b": "c d"}}}},
        "annotations": {"spec": {"metadata": {"annotations": {"a b": "c"}}}},
        "named": {"spec": {"metadata": {"name": "n"}}},
        "generate-name": {"spec": {"metadata": {"generateName": "n-", "namespace": "x"}}},
        "no-class": {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {}}]}}}},
        "cel": {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {**EXACT, "selectors": [{"cel": {"expression": "x"}}]}}]}}}},
        "admin": {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {**EXACT, "adminAccess": True}}]}}}},
        "empty": {"spec": {"=": {}}},
    }),
    "device-class": (CLASS, {
        "plain": {},
        "name": {"metadata": {"name": "A"}},
        "no-cel": {"spec": {"selectors": [{}]}},
        "cel": {"spec": {"selectors": [{"cel": {"expression": "device.memory"}}]}},
        "many": {"spec": {"selectors": [{"cel": {"expression": "true"}}] * 33}},
        "config": {"spec": {"config": [{"opaque": {"driver": "a", "parameters": {"b": 1}}}]}},
        "no-opaque": {"spec": {"config": [{}]}},
        "many-configs": {"spec": {"config": [{"opaque": {"driver": "a", "parameters": {"b": 1}}}] * 33}},
        "extended": {"spec": {"extendedResourceName": "nvidia.com/gpu"}},
        "extended-bare": {"spec": {"extendedResourceName": "gpu"}},
        "extended-native": {"spec": {"extendedResourceName": "a.kubernetes.io/gpu"}},
        "extended-syntax": {"spec": {"extendedResourceName": "nvidia.com/g p"}},
        "empty": {"spec": {"=": {}}},
    }),
    "slice": (SLICE, {
        "plain": {},
        "name": {"metadata": {"name": "A"}},
        "no-driver": sliced(driver=None),
        "driver": sliced(driver="A_B"),
        "driver-upper": sliced(driver="GPU.nvidia.com"),
        "no-pool": sliced(pool=None),
        "pool-name": sliced(pool={"name": "a/B/c"}),
        "pool-long": sliced(pool={"name": "/".join(["a" * 100] * 3)}),
        "pool-count": sliced(pool={"resourceSliceCount": 0}),
        "pool-generation": sliced(pool={"generation": -1}),
        "nowhere": sliced(nodeName=None),
        "two-places": sliced(allNodes=True),
        "node-name": sliced(nodeName="A_B"),
        "node-empty": sliced(nodeName=""),
        "not-all-nodes": sliced(allNodes=False),
        "all-nodes": sliced(nodeName=None, allNodes=True),
        "not-per-device": sliced(perDeviceNodeSelection=False),
        "selector": sliced(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM]}),
        "selector-none": sliced(nodeName=None, nodeSelector={"nodeSelectorTerms": []}),
        "selector-two": sliced(nodeName=None, nodeSelector={"nodeSelectorTerms": [TERM, TERM]}),
        "selector-operator": sliced(nodeName=None, nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}),
        "device-name": sliced(devices=[{"name": "GPU"}]),
        "device-no-name": sliced(devices=[{}]),
        "device-twice": sliced(devices=[{"name": "a"}, {"name": "a"}]),
        "many-devices": sliced(devices=[{"name": f"d{number}"} for number in range(129)]),
        "most-devices": sliced(devices=[{"name": f"d{number}"} for number in range(128)]),
        "many-tainted": sliced(devices=[{"name": f"d{number}", **({} if number else {"taints": [{"key": "a", "effect": "None"}]})} for number in range(65)]),
        "many-using": sliced(devices=[{"name": f"d{number}", **({} if number else {"consumesCounters": [USE]})} for number in range(65)]),
        "attribute": device(attributes={"type": {"string": "gpu"}, "gpu.nvidia.com/index": {"int": 0}, "ok": {"bool": False}, "driverVersion": {"version": "1.2.3"}}),
        "attribute-none": attribute(),
        "attribute-two": attribute(string="a", int=1),
        "attribute-long": attribute(string="a" * 65),
        "attribute-version": attribute(version="1.2"),
        "attribute-version-long": attribute(version="1.2.3-" + "a" * 64),
        "attribute-name": device(attributes={"a-b": {"int": 1}}),
        "attribute-domain": device(attributes={"/a": {"int": 1}}),
        "attribute-no-name": device(attributes={"a/": {"int": 1}}),
        "attribute-domain-syntax": device(attributes={"A_B/c": {"int": 1}}),
        "attribute-slashes": device(attributes={"a/b/c": {"int": 1}}),
        "attribute-long-name": device(attributes={"a" * 33: {"int": 1}}),
        "attribute-very-long-name": device(attributes={"a" * 120: {"int": 1}}),
        "capacity": device(capacity={"memory": {"value": "81559Mi"}, "a.b/c": {"value": "1"}}),
        "capacity-name": device(capacity={"a-b": {"value": "1"}}),
        "capacity-policy": device(capacity={"memory": {"value": "1", "requestPolicy": {"default": "1"}}}),
        "many-properties": device(attributes={f"a{number}": {"int": 1} for number in range(30)}, capacity={f"c{number}": {"value": "1"} for number in range(3)}),
        "policy": policy(default="1Gi", validRange={"min": "1Gi", "max": "8Gi", "step": "1Gi"}),
        "policy-both": policy(default="1Gi", validValues=["1Gi"], validRange={"min": "1Gi"}),
        "policy-no-default": policy(validValues=["1Gi"]),
        "policy-no-default-range": policy(validRange={"min": "1Gi"}),
        "policy-values": policy(default="1Gi", validValues=["1Gi", "2Gi"]),
        "policy-unsorted": policy(default="1Gi", validValues=["2Gi", "1Gi"]),
        "policy-other-default": policy(default="3Gi", validValues=["1Gi", "2Gi"]),
        "policy-large-value": policy(default="1Gi", validValues=["1Gi", "20Gi"]),
        "policy-twice": policy(default="1Gi", validValues=["1Gi", "1024Mi"]),
        "policy-eleven": policy(default="1Gi", validValues=[f"{number}" for number in range(11)]),
        "policy-no-min": policy(default="1Gi", validRange={"max": "2Gi"}),
        "policy-large-min": policy(default="11Gi", validRange={"min": "11Gi"}),
        "policy-small-default": policy(default="1Gi", validRange={"min": "2Gi"}),
        "policy-min-max": policy(default="3Gi", validRange={"min": "3Gi", "max": "2Gi"}),
        "policy-large-max": policy(default="1Gi", validRange={"min": "1Gi", "max": "20Gi"}),
        "policy-step": policy(default="2Gi", validRange={"min": "1Gi", "max": "4Gi", "step": "2Gi"}),
        "policy-large-step": policy(default="1Gi", validRange={"min": "1Gi", "step": "10Gi"}),
        "taint": device(taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}]),
        "taint-key": device(taints=[{"effect": "NoSchedule"}]),
        "taint-value": device(taints=[{"key": "a", "value": "b c", "effect": "NoSchedule"}]),
        "taint-no-effect": device(taints=[{"key": "a"}]),
        "taint-effect": device(taints=[{"key": "a", "effect": "PreferNoSchedule"}]),
        "many-taints": device(taints=[{"key": f"a{number}", "effect": "None"} for number in range(17)]),
        "uses": using(USE),
        "uses-twice": using(USE, USE),
        "uses-three": using(*({**USE, "counterSet": f"s{number}"} for number in range(3))),
        "uses-no-set": using({"counters": USE["counters"]}),
        "uses-set": using({**USE, "counterSet": "A"}),
        "uses-nothing": using({"counterSet": "set"}),
        "uses-name": using({"counterSet": "set", "counters": {"A": {"value": "1"}}}),
        "uses-many": using({"counterSet": "set", "counters": {f"c{number}": {"value": "1"} for number in range(33)}}),
        "counters-too": counted(),
        "own-place": device(nodeName="n1"),
        "per-device": placed(nodeName="n1"),
        "per-device-nowhere": placed(),
        "per-device-two": placed(nodeName="n1", allNodes=True),
        "per-device-name": placed(nodeName="A_B"),
        "per-device-empty": placed(nodeName=""),
        "per-device-all": placed(allNodes=False),
        "per-device-selector": placed(nodeSelector={"nodeSelectorTerms": []}),
        "binding": device(bindsToNode=True, bindingConditions=["a"], bindingFailureConditions=["b"]),
        "binding-alone": device(bindingConditions=["a"]),
        "binding-failure-alone": device(bindingFailureConditions=["a"]),
        "binding-overlap": device(bindingConditions=["a"], bindingFailureConditions=["a"]),
        "binding-twice": device(bindingConditions=["a", "a"], bindingFailureConditions=["b", "b"]),
        "binding-name": device(bindingConditions=["a b"], bindingFailureConditions=["b"]),
        "binding-many": device(bindingConditions=[f"a{number}" for number in range(5)], bindingFailureConditions=["b"]),
    }),
    "counters": (COUNTERS, {
        "plain": {},
        "no-name": counted(name=None),
        "name": counted(name="A"),
        "none": counted(counters={}),
        "counter-name": counted(counters={"A": {"value": "1"}}),
        "many-counters": counted(counters={f"c{number}": {"value": "1"} for number in range(33)}),
        "most": sliced(sharedCounters=[{"name": f"s{number}", "counters": {"a": {"value": "1"}}} for number in range(8)]),
        "many": sliced(sharedCounters=[{"name": f"s{number}", "counters": {"a": {"value": "1"}}} for number in range(9)]),
        "twice": sliced(sharedCounters=[{"name": "a", "counters": {"a": {"value": "1"}}}] * 2),
    }),
}  # fmt: skip

UPDATES: dict[str, tuple[Object, dict[str, Object]]] = {
    "claim-update": (CLAIM, {
        "label": {"metadata": {"labels": {"a": "b"}}},
        "spec": exactly(count=2),
        "finalizer": {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}},
        "status": {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": UID}]}},
    }),
    "template-update": (laid(TEMPLATE, {"spec": {"metadata": {"labels": {"a": "b"}}}}), {
        "label": {"metadata": {"labels": {"a": "b"}}},
        "spec": {"spec": {"metadata": {"labels": {"a": "c"}}}},
        "bad": {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {}}]}}}},
    }),
    "class-update": (CLASS, {
        "selectors": {"spec": {"selectors": []}},
        "bad": {"spec": {"selectors": [{"cel": {"expression": "device.memory"}}]}},
        "extended": {"spec": {"extendedResourceName": "a.b/c"}},
    }),
    "slice-update": (SLICE, {
        "devices": sliced(devices=[{"name": "gpu-1"}]),
        "driver": sliced(driver="other"),
        "pool": sliced(pool={"name": "n2"}),
        "generation": sliced(pool={"generation": 2}),
        "node": sliced(nodeName="n2"),
        "all-nodes": sliced(nodeName=None, allNodes=True),
        "taint": device(taints=[{"key": "a", "effect": "Some"}]),
    }),
}  # fmt: skip


def rows() -> list[Row]:
    return [*rows_of(CREATES, UPDATES), *device_status_table.rows()]
