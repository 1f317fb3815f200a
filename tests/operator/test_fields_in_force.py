"""Accepted means in effect: a brute force over every value of every field of a ClusterPolicy and an NVIDIADriver.

Each field is given each value that its schema names, and plain and unusual ones of its type (``field_values``). Every one
of them is refused, changes the objects that are made (and another value changes them otherwise), or is told: on the
policy, as a Warning, or as what is not ready. Silent are only the values that ask for nothing, each kind of which is listed
here. That is so with all that has a switch switched on, in both layouts; and the reference's table says the same.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pytest

from kgpu.formats import names
from kgpu.formats.crd import decode, field_support
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.field_support import FieldSupport
from kgpu.formats.crd.fields import SchemaField
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.kube import kinds
from kgpu.operator import conditions, projections
from kgpu.operator.model import ClusterNode, ClusterPlan, NodeDriverPod, ObservedCluster
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from kgpu.operator.rendering import ignored
from kgpu.operator.upgrade_rules import FOR_EVER
from tests.operator.field_values import Path, Spec, leaves, same, values, with_value
from tests.operator.world import OPERANDS_LAYOUT, SETTINGS, healthy_node, node_object, policy, settle, status_of, world

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
PLAIN: Final[Spec] = {"driver": {**OTHER_IMAGE, "enabled": True}}
UPGRADE: Final[Spec] = {"autoUpgrade": True, "waitForCompletion": {"podSelector": "a=b"}, "drain": {"enable": True}}
UPGRADED: Final[Spec] = {"driver": {**OTHER_IMAGE, "enabled": True, "upgradePolicy": UPGRADE}}
LITTLE: Final[Spec] = {"driver": {"enabled": False}}
# What NVIDIA's chart writes into a policy where nobody sets anything, as far as it differs from nothing.
USUAL: Final[Spec] = {
    "operator": {"defaultRuntime": "", "runtimeClass": "nvidia", "use_ocp_driver_toolkit": False},
    "daemonsets": {"updateStrategy": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "1"}},
    "driver": {"enabled": False, "useNvidiaDriverCRD": False, "usePrecompiled": False, "kernelModuleType": "auto",
               "rdma": {"enabled": False, "useHostMofed": False}, "licensingConfig": {"secretName": "", "nlsEnabled": True},
               "startupProbe": {"initialDelaySeconds": 60, "successThreshold": 1},
               "upgradePolicy": {"autoUpgrade": True, "maxParallelUpgrades": 1, "maxUnavailable": "25%",
                                 "waitForCompletion": {"timeoutSeconds": 0, "podSelector": ""},
                                 "podDeletion": {"force": False, "timeoutSeconds": 300, "deleteEmptyDir": False},
                                 "drain": {"enable": False, "force": False, "podSelector": "", "timeoutSeconds": 300,
                                           "deleteEmptyDir": False}}},
    "toolkit": {"enabled": True, "installDir": "/usr/local/nvidia"},
    "devicePlugin": {"enabled": True, "mps": {"root": "/run/nvidia/mps"}},
    "dcgm": {"enabled": False},
    "dcgmExporter": {"enabled": True, "hostPID": False, "serviceMonitor": {"enabled": False, "interval": "15s"},
                     "hpcJobMapping": {"enabled": False, "directory": "/var/lib/dcgm-exporter/job-mapping"}},
    "mig": {"strategy": "single"},
    "migManager": {"enabled": True, "config": {"name": "", "default": "all-disabled"}},
    "cdi": {"enabled": True, "nriPluginEnabled": False},
    "sandboxWorkloads": {"enabled": False, "defaultWorkload": "container", "mode": "kubevirt"},
    "vgpuManager": {"enabled": False}, "vfioManager": {"enabled": True},
    "vgpuDeviceManager": {"enabled": True, "config": {"name": "", "default": "default"}},
    "sandboxDevicePlugin": {"enabled": True}, "kataSandboxDevicePlugin": {"enabled": True},
    "ccManager": {"enabled": True, "defaultMode": "on"}, "kataManager": {"enabled": False},
    "gds": {"enabled": False}, "gdrcopy": {"enabled": False}, "psa": {"enabled": False},
}  # fmt: skip
LAYOUTS: Final = {"agent": SETTINGS, "operands": OPERANDS_LAYOUT}
POOL: Final[Spec] = {
    **OTHER_IMAGE, "nodeSelector": {"kubernetes.io/os": "linux"}, "manager": OTHER_IMAGE, "rdma": {"enabled": True},
    "gds": {**OTHER_IMAGE, "enabled": True}, "gdrcopy": {**OTHER_IMAGE, "enabled": True},
    "licensingConfig": {"secretName": "licence"},
}  # fmt: skip
FEW: Final[Spec] = {key: POOL[key] for key in (*OTHER_IMAGE, "nodeSelector")}
POOLS: Final = {"full": POOL, "little": FEW, "upgraded": {**FEW, "upgradePolicy": UPGRADE}}


class Outcome(enum.StrEnum):
    """What comes of a value."""

    REFUSED = "refused"
    TOLD = "told"
    IN_FORCE = "in force"
    SILENT = "silent"


Planned = tuple[ClusterPlan, tuple[str, ...]]


def planned(spec: Spec, layout: str) -> Planned | None:
    """The plan and what the policy is told; None for one that can't be read."""
    made = policy(spec=spec)
    if made.problem:
        return None
    return plan(ObservedCluster(policies=(made,), nodes=nodes(), kinds=KINDS), LAYOUTS[layout]), made.warnings


def planned_driver(spec: Spec, _layout: str) -> Planned | None:
    """The same for an NVIDIADriver."""
    made = projections.driver({"metadata": {"name": "pool", "generation": 1}, "spec": spec})["value"]
    if made.problem:
        return None
    found = plan(ObservedCluster(policies=(BY_CRD,), drivers=(made,), nodes=nodes(), kinds=KINDS), SETTINGS)
    return found, made.warnings


BY_CRD: Final = policy(spec={"driver": {"enabled": True, "useNvidiaDriverCRD": True}})


def nodes() -> tuple[ClusterNode, ...]:
    cut = node_object("n3", labels={names.LABEL_MIG_CAPABLE: "true"})
    return tuple(map(read_node, (node_object("n1"), healthy_node("n2"), cut)))


def upgraded(spec: Spec, struct: type[msgspec.Struct]) -> tuple[Any, ...] | None:
    """What comes of an upgrade policy: what is made and told where another driver runs than is wanted; None for a spec
    that can't be read.
    """
    if struct is NVIDIADriverSpec:
        made = projections.driver({"metadata": {"name": "pool", "generation": 1}, "spec": spec})["value"]
        observed = ObservedCluster(policies=(BY_CRD,), drivers=(made,), nodes=nodes(), kinds=KINDS)
    else:
        made = policy(spec=spec)
        observed = ObservedCluster(policies=(made,), nodes=nodes(), kinds=KINDS)
    if made.problem:
        return None
    there = settle(dataclasses.replace(observed, kinds=frozenset({*KINDS, "nodeoperations.kgpu.dev"})))
    old = tuple(
        NodeDriverPod(name=name, node="n1", daemon_set=name, image="old")
        for name in there.daemon_sets
        if "driver" in name
    )
    found = plan(dataclasses.replace(there, driver_pods=old), SETTINGS)
    return found.upgrades.create, said(found)


def said(found: ClusterPlan) -> tuple[Any, ...]:
    """All that is told of a plan, but for fields without effect."""
    statuses = [
        {name: [one for one in status["conditions"] if one["type"] != conditions.FIELDS_PROVIDED]}
        for each in (found.policy_status, found.driver_status)
        for name, status in each.items()
    ]
    return [one for one in found.advice if one.reason != "ManifestWarning"], statuses


def ignorance(told: tuple[Any, ...]) -> list[Any]:
    """What of it is about settings without effect."""
    return [one for one in told[0] if one.reason in IGNORED]


@dataclass(frozen=True, eq=False)
class Kind:
    """A custom resource, and specs of it in which what its fields are about is there."""

    struct: type[msgspec.Struct]
    subject: str
    bases: Mapping[str, Spec]
    plan: Callable[[Spec, str], Planned | None]
    layouts: tuple[str, ...]
    quiet: Mapping[str, tuple[Any, ...]]
    """Values that are what is so without them, and are neither default nor empty, by field."""
    plans: dict[tuple[str, str], ClusterPlan] = field(default_factory=dict)

    def usual(self, base: str, layout: str) -> ClusterPlan:
        """The plan of a base alone."""
        if (base, layout) not in self.plans:
            found = self.plan(self.bases[base], layout)
            assert found is not None
            self.plans[base, layout] = found[0]
        return self.plans[base, layout]

    def outcome(self, path: Path, value: Any, layout: str) -> tuple[Outcome, Any]:
        """What comes of a value where most comes of it, and the objects that it makes."""
        result = Outcome.REFUSED
        for base, start in self.bases.items():
            found = self.plan(with_value(start, path, value, self.struct), layout)
            if found is None:
                continue
            made, usual = found[0], self.usual(base, layout)
            now, before = said(made), said(usual)
            if self.is_told(path, found) or any(one not in before[0] for one in ignorance(now)):
                return Outcome.TOLD, None
            more, without = (), ()
            if "upgradePolicy" in path:
                more = upgraded(with_value(start, path, value, self.struct), self.struct)
                without = upgraded(start, self.struct)
            if (made.objects, made.nodes, now, more) != (usual.objects, usual.nodes, before, without):
                return Outcome.IN_FORCE, (base, made.objects, made.nodes, now, more)
            result = Outcome.SILENT
        return result, None

    def is_told(self, path: Path, found: Planned) -> bool:
        """Whether a warning names the field, or a section that it is in, and is an Event."""
        made, warnings = found
        named = {one.partition(" ")[0] for one in warnings} & {".".join(("spec", *path[:end])) for end in ENDS}
        events = " ".join(one.what for one in made.advice if one.subject == self.subject)
        return any(one in events for one in named)

    def asks(self, path: Path, row: SchemaField, value: Any) -> bool:
        """Whether a value asks for anything that isn't so without it."""
        if any(same(value, one) for one in (row.default, *row.usual, *self.quiet.get(".".join(path), ()))):
            return False
        if value is False:
            return row.default is True or "on if not given" in row.type.doc
        return same(value, 0) or bool(value)

    def support(self, name: str) -> FieldSupport:
        """What the reference's table says of a field."""
        rows = {part.path: part for part in field_support.parts(self.struct)}
        above = [name.rsplit(".", cut)[0] for cut in range(name.count(".") + 1)]
        return next(rows[path] for path in above if path in rows).does


ENDS: Final = range(1, 8)
IGNORED: Final = frozenset({"SettingIgnored", "ArgumentsIgnored", "ImageIgnored", ignored.SANDBOX})
POLICY: Final = Kind(
    ClusterPolicySpec, "ClusterPolicy/cluster-policy", {"images": IMAGES, "full": FULL, "plain": PLAIN, "little": LITTLE, "upgraded": UPGRADED}, planned,
    tuple(LAYOUTS),
    quiet={
        **{f"{name}.enabled": (True,) for name in OPERANDS},
        "dcgmExporter.hostPID": (True,), "dcgm.hostPort": (0,), "driver.startupProbe.successThreshold": (1,),
        # It is in the bases, and in force with them.
        "driver.rdma.enabled": (True,),
        # A switch that the chart has on, of what is not built.
        **{
            f"{name}.enabled": (True,)
            for name in (
                "migManager", "vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin", "kataSandboxDevicePlugin",
                "ccManager",
            )
        },
    },
)  # fmt: skip
DRIVER: Final = Kind(
    NVIDIADriverSpec, "NVIDIADriver/pool", POOLS, planned_driver, ("agent",),
    quiet={
        "licensingConfig.nlsEnabled": (True,), "startupProbe.successThreshold": (1,),
    },
)  # fmt: skip
NOT_TOLD: Final = frozenset({("dcgmExporter.hostPID", "agent")})
"""Without effect where it is false, which NVIDIA's chart writes into every policy; the reference says so."""
CASES: Final = [(kind, name) for kind in (POLICY, DRIVER) for name in leaves(kind.struct)]
SELECTORS: Final = frozenset({"nodeSelector", "nodeSelectorTerms"})
"""Whatever selects no node makes the same: nothing."""
# Written otherwise, and the same.
NOTHING: Final = ("", [], {}, "replace")


@pytest.mark.parametrize(
    ("kind", "name"), CASES, ids=[f"{kind.subject.partition('/')[0]}-{name}" for kind, name in CASES]
)
def test_every_value_changes_something_or_is_told_to_change_nothing(kind: Kind, name: str) -> None:
    path, row = leaves(kind.struct)[name]
    does = kind.support(name)
    built = does in {FieldSupport.IN_FORCE, FieldSupport.DEPRECATED}
    # Of an operand that is not built, which image it would be is nothing that could be in force.
    tried = () if not built and path[-1] in decode.IMAGE else values(row)
    outcomes = {layout: set[Outcome]() for layout in (kind.layouts if built else kind.layouts[:1])}
    for layout, found in outcomes.items():
        made: list[tuple[Any, Any]] = []
        for value in tried:
            asks = kind.asks(path, row, value)
            outcome, result = kind.outcome(path, value, layout)
            silent = outcome is Outcome.SILENT and asks and (name, layout) not in NOT_TOLD
            assert not silent, f"spec.{name}: {value!r} is taken without a word in {layout}"
            found |= {outcome} if asks or built else set()
            if outcome is Outcome.IN_FORCE and path[-1] not in SELECTORS:
                alike = [other for other, objects in made if objects == result and not means_the_same(other, value)]
                assert not alike, f"spec.{name}: {value!r} and {alike} make the same in {layout}"
                made.append((value, result))
    in_force = [Outcome.IN_FORCE in found for found in outcomes.values()]
    if built and not all(in_force) and does is not FieldSupport.DEPRECATED:
        assert is_conditional(path), f"the reference says of spec.{name}: {does}, and it is {outcomes}"
    assert built or not any(in_force), f"the reference says of spec.{name}: {does}, and it is {outcomes}"


def is_conditional(path: Path) -> bool:
    """Whether the reference says when a field has no effect: by its path, its name, or that of its section of amounts."""
    name = path[-2] if path[-1] in {"limits", "requests"} else path[-1]
    words = {f"`{'.'.join(path)}`", f"`{name}`"}
    return any(word in row.field for row in ignored.CONDITIONAL for word in words)


def means_the_same(one: Any, other: Any) -> bool:
    """Whether two values are the same but for how they are written; 0 s is for ever, as the largest number is."""
    for_ever = {str(one), str(other)} == {"0", str(FOR_EVER)}
    return plain(one) == plain(other) or str(one) == str(other) or for_ever


def plain(value: Any) -> Any:
    """A value without what makes no difference."""
    if isinstance(value, dict):
        found = {key: plain(inner) for key, inner in value.items()}
        return {key: inner for key, inner in found.items() if inner not in NOTHING}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("spec", [LITTLE, USUAL], ids=["none", "as NVIDIA's chart writes them"])
def test_a_policy_of_defaults_is_ready_without_a_word(spec: Spec) -> None:
    made = policy(spec=spec)
    assert (made.warnings, made.unbuilt) == ((), ())
    found = plan(world(healthy_node(), policies=(made,), kinds=KINDS), SETTINGS)
    assert status_of(found)["state"] == conditions.STATE_READY
    assert not [one for one in found.advice if one.subject.startswith("ClusterPolicy/") and one.severity.notable]


OVERRULED: Final[dict[str, tuple[Spec, str]]] = {
    "driver.usePrecompiled": ({"driver": {"useNvidiaDriverCRD": True, "usePrecompiled": True}}, "NVIDIADriver objects"),
    "driver.rdma.enabled and gds.enabled": (
        {"driver": {"useNvidiaDriverCRD": True, "rdma": {"enabled": True}}, "gds": {"enabled": True, **OTHER_IMAGE}},
        "NVIDIADriver objects",
    ),
    "driver.licensingConfig.secretName": (
        {"driver": {"useNvidiaDriverCRD": True, "licensingConfig": {"secretName": "s"}}}, "NVIDIADriver objects",
    ),
    "dcgmExporter.podLabelAllowlistRegex": (
        {"driver": {"enabled": False}, "dcgmExporter": {"podLabelAllowlistRegex": ["app"]}}, "enablePodLabels",
    ),
    "daemonsets.rollingUpdate.maxUnavailable": (
        {**LITTLE, "daemonsets": {"updateStrategy": "OnDelete", "rollingUpdate": {"maxUnavailable": "2"}}}, "OnDelete",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields", OVERRULED)
def test_a_field_that_another_one_overrules_is_told(fields: str) -> None:
    spec, why = OVERRULED[fields]
    found = planned(spec, "agent")
    assert found is not None
    (told,) = [one for one in found[0].advice if one.what == f"without effect in the policy: {fields}"]
    assert why in told.why
    assert told.severity.notable


# Of a driver: what the chart writes into every policy, and what goes with another value that is told.
OF_THE_CHART: Final = re.compile(
    r".*(Probe\..*|\.(nlsEnabled|useHostMofed|repository|image|version|imagePullPolicy)|manager\.env)"
    r"|(gds|gdrcopy)\.(?!enabled).*|driver\.(enabled|useNvidiaDriverCRD)"
)
OF_A_DRIVER: Final = [
    name
    for name in leaves(ClusterPolicySpec)
    if name.partition(".")[0] in {"driver", "gds", "gdrcopy"} and not OF_THE_CHART.fullmatch(name)
]


@pytest.mark.parametrize("name", OF_A_DRIVER)
def test_where_objects_describe_drivers_the_policy_is_told_what_of_its_own_is_idle(name: str) -> None:
    path, row = leaves(ClusterPolicySpec)[name]
    base: Spec = {"driver": {"useNvidiaDriverCRD": True}}
    for value in values(row):
        found = planned(with_value(base, path, value, ClusterPolicySpec), "agent")
        if found and (POLICY.asks(path, row, value) or (name, value) == ("driver.rdma.enabled", True)):
            words = name.removesuffix(".limits").removesuffix(".requests")
            assert any(words in one.what for one in found[0].advice), f"spec.{name}: {value!r}"


def test_what_is_not_built_is_named_in_a_condition_and_what_is_usual_is_not() -> None:
    quiet = {"ccManager": {"enabled": True, "defaultMode": "on"}, "migManager": {"enabled": True}}
    asked = {
        "dcgm": {"enabled": True},
        "vgpuManager": {"enabled": True},
    }
    for spec, status, named in (({**LITTLE, **quiet}, "True", ()), (asked, "Unknown", ("dcgm", "vgpuManager"))):
        found = planned(spec, "agent")
        assert found is not None
        (said,) = [
            one for one in found[0].policy_status["cluster-policy"]["conditions"] if one["type"] == "FieldsProvided"
        ]
        assert said["status"] == status
        assert all(word in said["message"] for word in named)


def test_all_of_a_driver_is_built() -> None:
    for spec in POOLS.values():
        found = planned_driver(spec, "")
        assert found is not None
        entries = found[0].driver_status["pool"]["conditions"]
        (said,) = [one for one in entries if one["type"] == conditions.FIELDS_PROVIDED]
        assert said["status"] == "True"
