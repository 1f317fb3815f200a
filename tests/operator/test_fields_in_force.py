"""Accepted means in effect: a brute force over every field of a ClusterPolicy.

Each leaf is given values that differ from its default. Either the plan becomes another one, or the policy is told that
nothing comes of it. That is so with every operand switched on and with as little as there can be, in both layouts.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from kgpu.formats.crd import decode
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.fields import SchemaField, Type, rows
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.kube import kinds
from kgpu.operator import conditions, projections
from kgpu.operator.model import ClusterPlan, ObservedCluster, OperatorSettings
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.operator.world import OPERANDS_LAYOUT, SETTINGS, healthy_node, node_object, policy

Path = tuple[str, ...]
Spec = dict[str, Any]

KINDS: Final = frozenset(map(kinds.plural_and_group, kinds.MANAGED))
OWN_IMAGE: Final = {"repository": "example.org", "image": "kgpu", "version": "2"}
OTHER_IMAGE: Final = {"repository": "example.org", "image": "driver", "version": "580"}
# Everything that has a switch is on, and what a field is about is there.
FULL: Final[Spec] = {
    "operator": {"metrics": {"serviceMonitor": {"enabled": True}}},
    "driver": {
        **OTHER_IMAGE, "enabled": True, "manager": OTHER_IMAGE, "rdma": {"enabled": True},
        "licensingConfig": {"secretName": "licence"},
    },
    "dcgmExporter": {
        "enabled": True, "serviceMonitor": {"enabled": True}, "hpcJobMapping": {"enabled": True}, "enablePodLabels": True,
    },
    "gds": {**OTHER_IMAGE, "enabled": True},
    "gdrcopy": {**OTHER_IMAGE, "enabled": True},
    "nodeStatusExporter": {"enabled": True},
    "validator": {},
    "psa": {"enabled": True},
    **{
        name: {"enabled": True}
        for name in (
            "toolkit", "devicePlugin", "gfd", "dcgm", "migManager", "sandboxWorkloads", "vgpuManager",
            "vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin", "kataSandboxDevicePlugin", "ccManager",
            "kataManager",
        )
    },
}  # fmt: skip
OPERANDS: Final = ("toolkit", "devicePlugin", "dcgmExporter", "gfd", "nodeStatusExporter", "validator")
IMAGES: Final[Spec] = {**FULL, **{name: {**FULL[name], **OWN_IMAGE} for name in OPERANDS}}
LITTLE: Final[Spec] = {"driver": {"enabled": False}}
BASES: Final = {"full": FULL, "images": IMAGES, "little": LITTLE}
NOT_ALONE: Final = frozenset({"localhostProfile"})
"""Fields that are refused without another one."""
NOT_TOLD: Final = frozenset({("dcgmExporter.hostPID", "agent")})
"""Without effect where it is false, which NVIDIA's chart writes into every policy; the reference says so."""
LAYOUTS: Final = {"agent": SETTINGS, "operands": OPERANDS_LAYOUT}
WORDS: Final[dict[str, tuple[Any, ...]]] = {
    "limits": ({"cpu": "1"},), "requests": ({"cpu": "1"},), "interval": ("7s",), "scrapeTimeout": ("7s",),
    "supplementalGroups": ([7],), "runtimeClasses": ([{"name": "kata", "artifacts": {"url": "u"}}],),
    "localhostProfile": (),  # goes with another field, and is refused alone
}  # fmt: skip


def leaves(struct: type[msgspec.Struct], path: Path = ()) -> Iterator[tuple[Path, SchemaField]]:
    for row in rows(struct):
        if row.type.struct:
            yield from leaves(row.type.struct, (*path, row.name))
        else:
            yield (*path, row.name), row


ENDS: Final = range(1, 8)
LEAVES: Final = {".".join(path): (path, row) for path, row in leaves(ClusterPolicySpec)}


def values(row: SchemaField) -> tuple[Any, ...]:
    """Values of the field's type that ask for something."""
    kind: Type = row.type
    if row.name in WORDS:
        return WORDS[row.name]
    if kind.enum:
        return tuple(one for one in kind.enum if one and one != row.default)
    if kind.items:
        return ([{"name": "NAME", "value": "x"}] if kind.items.struct else ["x"],)
    if kind.values:
        return ({"a": "b"},)
    if kind.int_or_string:
        return ("7%",)
    return {bool: (True, False), int: (7,)}.get(kind.scalar or str, ("text", "/absolute", "7"))


def with_value(base: Spec, path: Path, value: Any) -> Spec:
    spec = place = copy.deepcopy(base)
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    return spec


def planned(spec: Spec, settings: OperatorSettings) -> tuple[ClusterPlan, tuple[str, ...]] | None:
    """The plan and what the policy is told; None for one that can't be read."""
    made = policy(spec=spec)
    if made.problem:
        return None
    nodes = tuple(map(read_node, (node_object("n1"), healthy_node("n2"))))
    return plan(ObservedCluster(policies=(made,), nodes=nodes, kinds=KINDS), settings), made.warnings


def effect(found: ClusterPlan) -> tuple[Any, ...]:
    """All that follows from a plan, but for what it says of fields without effect."""
    said = [one for one in found.advice if one.reason != "ManifestWarning"]
    status = {
        name: [one for one in status["conditions"] if one["type"] != conditions.FIELDS_PROVIDED]
        for name, status in found.policy_status.items()
    }
    drivers = {
        name: [one for one in status["conditions"] if one["type"] != conditions.FIELDS_PROVIDED]
        for name, status in found.driver_status.items()
    }
    return found.objects, found.nodes, drivers, status, said


@functools.cache
def usual(base: str, layout: str) -> tuple[Any, ...]:
    found = planned(BASES[base], LAYOUTS[layout])
    assert found is not None
    return effect(found[0])


@pytest.mark.parametrize("name", LEAVES)
def test_a_field_changes_something_or_is_told_to_change_nothing(name: str) -> None:
    path, row = LEAVES[name]
    unbuilt = [one for one in sections(path) if one.unbuilt]
    if unbuilt and (True in row.usual or (path[-1] == decode.SWITCH and True in unbuilt[0].usual)):
        return  # a switch that the chart has on: neither on nor off asks for anything
    silent = [layout for layout in LAYOUTS if (name, layout) not in NOT_TOLD and is_silent(path, row, layout)]
    # Of an operand that is not built, which image it would be is nothing that could be in force.
    assert (unbuilt and path[-1] in decode.IMAGE) or not silent, f"spec.{name} is taken without a word in {silent}"


def is_silent(path: Path, row: SchemaField, layout: str) -> bool:
    """Whether no value that is taken changes anything, nor is told to change nothing."""
    tried = 0
    for base, spec in BASES.items():
        for value in values(row):
            found = planned(with_value(spec, path, value), LAYOUTS[layout])
            if found is None:
                continue
            tried += 1
            made, warnings = found
            told = {one.partition(" ")[0] for one in warnings} & {".".join(("spec", *path[:end])) for end in ENDS}
            if told or effect(made) != usual(base, layout):
                return False
    return tried > 0


def sections(path: Path) -> Iterator[SchemaField]:
    struct: type[msgspec.Struct] | None = ClusterPolicySpec
    for name in path:
        assert struct is not None
        row = next(one for one in rows(struct) if one.name == name)
        yield row
        struct = row.type.struct


def test_what_is_not_built_is_named_in_a_condition_and_what_is_usual_is_not() -> None:
    quiet = {"ccManager": {"enabled": True, "defaultMode": "on"}, "migManager": {"enabled": True}}
    asked = {
        "driver": {"enabled": False, "upgradePolicy": {"maxParallelUpgrades": 4}},
        "vgpuManager": {"enabled": True},
    }
    for spec, status, named in (({**LITTLE, **quiet}, "True", ()), (asked, "Unknown", ("maxParallel", "vgpuManager"))):
        found = planned(spec, SETTINGS)
        assert found is not None
        (said,) = [
            one for one in found[0].policy_status["cluster-policy"]["conditions"] if one["type"] == "FieldsProvided"
        ]
        assert said["status"] == status
        assert all(word in said["message"] for word in named)


# --- NVIDIADriver -----------------------------------------------------------------------------------------------------

POOL: Final[Spec] = {
    **OTHER_IMAGE, "nodeSelector": {"kubernetes.io/os": "linux"}, "manager": OTHER_IMAGE, "rdma": {"enabled": True},
    "gds": {**OTHER_IMAGE, "enabled": True}, "gdrcopy": {**OTHER_IMAGE, "enabled": True},
    "licensingConfig": {"secretName": "licence"},
}  # fmt: skip
POOLS: Final = {"full": POOL, "little": {key: POOL[key] for key in (*OTHER_IMAGE, "nodeSelector")}}
DRIVER_LEAVES: Final = {".".join(path): (path, row) for path, row in leaves(NVIDIADriverSpec)}
TERMS: Final = [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]}]
# Structures that are no mere text.
SHAPES: Final[dict[str, tuple[Any, ...]]] = {
    "nodeSelectorTerms": (TERMS,),
    "preferredDuringSchedulingIgnoredDuringExecution": ([{"weight": 1, "preference": TERMS[0]}],),
    "tolerations": ([{"key": "a", "operator": "Exists"}],),
}  # fmt: skip


def planned_driver(spec: Spec) -> tuple[ClusterPlan, tuple[str, ...]] | None:
    made = projections.driver({"metadata": {"name": "pool", "generation": 1}, "spec": spec})["value"]
    if made.problem:
        return None
    nodes = tuple(map(read_node, (node_object("n1"), healthy_node("n2"))))
    by_crd = policy(spec={"driver": {"enabled": True, "useNvidiaDriverCRD": True}})
    found = plan(ObservedCluster(policies=(by_crd,), drivers=(made,), nodes=nodes, kinds=KINDS), SETTINGS)
    return found, made.warnings


@functools.cache
def usual_driver(base: str) -> tuple[Any, ...]:
    found = planned_driver(POOLS[base])
    assert found is not None
    return effect(found[0])


@pytest.mark.parametrize("name", DRIVER_LEAVES)
def test_a_drivers_field_changes_something_or_is_told_to_change_nothing(name: str) -> None:
    path, row = DRIVER_LEAVES[name]
    if True in row.usual:
        return  # of what is not built: off is so already, and on is the default
    tried = 0
    for base, spec in POOLS.items():
        for value in SHAPES.get(path[-1], values(row)):
            found = planned_driver(with_value(spec, path, value))
            if found is None:
                continue
            tried += 1
            made, warnings = found
            told = {one.partition(" ")[0] for one in warnings} & {".".join(("spec", *path[:end])) for end in ENDS}
            said = " ".join(one.what for one in made.advice if one.subject == "NVIDIADriver/pool")
            if effect(made) != usual_driver(base) or (told and all(one in said for one in told)):
                return
    assert not tried, f"spec.{name} of an NVIDIADriver is taken without a word"
    assert path[-1] in NOT_ALONE, f"spec.{name} of an NVIDIADriver was not tried: {values(row)}"


def test_a_driver_says_itself_what_of_it_is_not_built() -> None:
    plain = {key: POOL[key] for key in (*OTHER_IMAGE, "nodeSelector")}
    for spec, status in ((plain, "True"), ({**plain, "upgradePolicy": {"maxParallelUpgrades": 4}}, "Unknown")):
        found = planned_driver(spec)
        assert found is not None
        entries = found[0].driver_status["pool"]["conditions"]
        (said,) = [one for one in entries if one["type"] == conditions.FIELDS_PROVIDED]
        assert said["status"] == status
        assert (status == "True") != ("spec.upgradePolicy.maxParallelUpgrades" in said["message"])
