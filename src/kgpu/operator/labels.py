"""Which labels the operator wants on a Node: ``label_plan``.

A key ``nvidia.com/gpu.deploy.<x>`` is the operator's to set while it is absent, empty or its own; any other value is a
user's (``false``, ``pre-installed``) or an upgrade's (``paused-for-driver-upgrade``) and stays. One exception: where
the policy has kgpu's MIG manager, which pauses nothing, ``paused-for-mig-change`` was left by a manager that it has
replaced, and that one gives nothing back any more. What others own has to go only where it would start something that
must not run: the value ``true`` of an operand that this node's workload does not have. When every feature label of a
node is gone at once, its discovery has failed rather than its GPUs: everything then stays as it is. Rules: the replaced
operator's node labelling.

``nvidia.com/gpu-driver-upgrade-state`` and the annotations beside it say how far the node's driver upgrade is. The
annotation ``nvidia.com/gpu-driver-upgrade-enabled`` stops the driver's pod from emptying the node and giving it back:
it is there while kgpu may do that, which is always with ``autoUpgrade``, otherwise while an upgrade is approved.

Nodes of other vendors have ``kgpu.dev/vendor``, and the labels of those operands that serve that vendor. One whose
accelerators another device plugin offers is left to that until it is gone.

``kgpu.dev/agent`` says where the privileged agent belongs: where an operand's label gives it work. It stays, with the
value ``leaving``, until the agent of a node without work has cleaned up there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import SandboxWorkloads
from kgpu.formats.names import NVIDIA
from kgpu.formats.operands import FINDERS, OPERANDS, Operand, roles_on
from kgpu.operator.allocation import DEPLOYED, AllocationRules, allocators, lingers
from kgpu.operator.model import AgentNodes, ClusterNode, NodeLabels, NodeLayout, OperatorSettings, Policy
from kgpu.operator.vendors import VENDORS, deployed, seen

TRUE: Final = "true"
FALSE: Final = "false"
CONTAINER: Final = "container"
PASSTHROUGH: Final = "vm-passthrough"
VGPU: Final = "vm-vgpu"
WORKLOADS: Final = (CONTAINER, PASSTHROUGH, VGPU)
ALL_DISABLED: Final = "all-disabled"

_OPERANDS: Final[Mapping[str, tuple[str, ...]]] = {
    CONTAINER: (
        "driver",
        "gpu-feature-discovery",
        "container-toolkit",
        *DEPLOYED.values(),
        "dcgm",
        "dcgm-exporter",
        "node-status-exporter",
        "operator-validator",
        "client",
    ),
    PASSTHROUGH: ("sandbox-validator", "vfio-manager", "kata-manager", "cc-manager", "client"),
    VGPU: ("sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator", "cc-manager", "client"),
}
_PASSTHROUGH_PLUGIN: Final = {"kubevirt": "sandbox-device-plugin", "kata": "kata-sandbox-device-plugin"}
_MIG_MANAGER: Final = "mig-manager"
_MIG_PRODUCTS: Final = ("h100", "a100", "a30")


def deploy(suffix: str) -> str:
    """The Node label of an operand."""
    return names.LABEL_DEPLOY_PREFIX + suffix


DRIVER: Final = deploy("driver")
STATE_KEYS: Final = frozenset(
    map(
        deploy,
        (
            *(x for group in _OPERANDS.values() for x in group),
            *_PASSTHROUGH_PLUGIN.values(),
            _MIG_MANAGER,
            *(x for vendor in VENDORS for x in deployed(vendor)),
        ),
    )
)
"""Every operand's label that the operator sets on some node."""

AGENT: Final = names.AGENT_NODE_LABEL
LEAVING: Final = names.AGENT_NODE_LEAVING
WORK: Final = frozenset(deploy(operand.deploy) for operand in OPERANDS if operand.role and operand.deploy)
"""The labels that give an agent work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRules:
    """What policy and settings say about labels. ``active`` is False without a policy: then the operator's labels go.

    ``mig_default`` is the layout of nodes without a label, "" for none. ``agents``: one agent per node does everything;
    ``everywhere``: it is wanted on nodes without work, too. ``allocation``: how GPUs are handed out.
    """

    active: bool = False
    sandbox: bool = False
    workload: str = CONTAINER
    mode: str = "kubevirt"
    driver: bool = True
    driver_crd: bool = False
    mig_manager: bool = False
    mig_default: str = ""
    agents: bool = False
    everywhere: bool = False
    allocation: AllocationRules = field(default_factory=AllocationRules)

    @classmethod
    def of(
        cls,
        policy: Policy | None,
        settings: OperatorSettings | None = None,
        allocation: AllocationRules | None = None,
    ) -> LabelRules:
        """The rules of the policy in force, None for no policy."""
        if policy is None:
            return cls()
        spec = policy.spec
        workloads = spec.sandbox_workloads or SandboxWorkloads()
        sandbox = workloads.enabled is True
        driver = spec.driver.enabled is not False
        mig = spec.mig_manager.enabled is not False
        return cls(
            active=True,
            sandbox=sandbox,
            workload=workloads.default_workload,
            mode=workloads.mode,
            driver=driver,
            driver_crd=driver and spec.driver.use_nvidia_driver_crd is True,
            mig_manager=mig,
            mig_default=spec.mig_manager.config.default if mig else "",
            agents=settings is not None and settings.layout is NodeLayout.AGENT,
            everywhere=settings is not None and settings.agent_nodes is AgentNodes.ALL,
            allocation=allocation or AllocationRules(),
        )


def vendor_of(node: ClusterNode) -> str:
    """Whose accelerators a node is served for, by its PCI labels or its agent's report; "" for a node without any.

    Also for a node that had some and has lost every feature label and its agent's report: discovery has failed there.
    """
    vendor = seen(node.labels, node.report, node.served)
    if vendor or looked_at(node):
        return vendor
    if node.labels.get(names.LABEL_GPU_PRESENT) == TRUE:
        return NVIDIA if node.served is None or NVIDIA in node.served else ""
    last = node.labels.get(names.LABEL_VENDOR, "") if names.LABEL_VENDOR in node.owned else ""
    return last if last in VENDORS and (node.served is None or last in node.served) else ""


def is_gpu(node: ClusterNode) -> bool:
    """True for a node with NVIDIA GPUs."""
    return vendor_of(node) == NVIDIA


def has_accelerators(node: ClusterNode) -> bool:
    """True for a node with accelerators of a vendor that is served."""
    return bool(vendor_of(node))


def is_known(node: ClusterNode) -> bool:
    """True when PCI labels or the node's agent name accelerators now."""
    return bool(seen(node.labels, node.report, node.served))


def is_taken(node: ClusterNode) -> bool:
    """True for a node whose accelerators another device plugin offers: kgpu's has never been told to. NVIDIA's are not
    meant: another GPU operator is looked for as such.
    """
    vendor = vendor_of(node)
    ours = vendor in ("", NVIDIA) or names.LABEL_VENDOR in node.owned
    return not ours and any(node.allocatable.values())


def looked_at(node: ClusterNode) -> bool:
    """True when a discovery has looked for devices on this node."""
    if any(key.startswith(names.NFD_PREFIX) for key in node.labels):
        return True
    roles = node.report.roles if node.report else {}
    return any(name in FINDERS and role.state == "running" for name, role in roles.items())


def serves(operand: Operand, node: ClusterNode) -> bool:
    """Whether an operand has something to do on nodes of this vendor; what is no role is for NVIDIA's alone."""
    vendor = vendor_of(node)
    if vendor in ("", NVIDIA):
        return not operand.vendors or NVIDIA in operand.vendors
    return operand.role in roles_on(vendor) - node.without


def opted_out(node: ClusterNode) -> bool:
    """True when no operand is to be on this node: by its label, by ``agent.nodeSelector``, or as another device plugin
    serves it.
    """
    return node.aside or node.labels.get(names.LABEL_DEPLOY_OPERANDS) == FALSE or is_taken(node)


def has_agent(node: ClusterNode) -> bool:
    """True where the privileged agent belongs and the finder does not."""
    return AGENT in node.labels


def is_cleaned(node: ClusterNode) -> bool:
    """True when the node's agent reports that it has cleaned up; a role that looks for GPUs may go on."""
    roles = node.agent.roles if node.agent else {}
    states = {role.state for name, role in roles.items() if name not in FINDERS}
    return "left" in states and states <= {"left", "stopped"}


def workload(node: ClusterNode, rules: LabelRules) -> str:
    """What the node's GPUs are for; a label that is no workload counts as absent."""
    if not rules.sandbox or not is_gpu(node):
        return CONTAINER
    wanted = node.labels.get(names.LABEL_WORKLOAD_CONFIG, "")
    return wanted if wanted in WORKLOADS else rules.workload


def mig_capable(node: ClusterNode) -> bool:
    """True when GPUs of this node support MIG, by the discovered label, else by the product's name."""
    labels = node.labels
    if labels.get(names.LABEL_VGPU_HOST_DRIVER_VERSION):
        return False
    capable = labels.get(names.LABEL_MIG_CAPABLE)
    if capable is not None:
        return capable == TRUE
    product = labels.get(names.LABEL_GPU_PRODUCT, "").lower()
    return any(name in product for name in _MIG_PRODUCTS)


def wanted_operands(node: ClusterNode, rules: LabelRules) -> dict[str, str]:
    """The operands' labels with the values that the operator would give them on this node."""
    vendor = vendor_of(node)
    if not rules.active or not vendor or opted_out(node):
        return {}
    mode = workload(node, rules)
    labels = dict.fromkeys(map(deploy, _OPERANDS[mode] if vendor == NVIDIA else deployed(vendor, node.without)), TRUE)
    for program in DEPLOYED.keys() - allocators(node.labels, rules.allocation, by_claims=node.by_claims):
        key = deploy(DEPLOYED[program])
        if labels.pop(key, None) and lingers(node, program):
            labels[key] = LEAVING
    if vendor != NVIDIA:
        return labels
    if mode == PASSTHROUGH:
        labels[deploy(_PASSTHROUGH_PLUGIN.get(rules.mode, _PASSTHROUGH_PLUGIN["kubevirt"]))] = TRUE
    if mode == CONTAINER and mig_capable(node):
        labels[deploy(_MIG_MANAGER)] = TRUE
    if DRIVER in labels and rules.driver and node.report is not None and node.report.driver_source == "host":
        labels[DRIVER] = names.PRE_INSTALLED
    return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeMarks:
    """What a node tells of its driver's upgrade. ``state`` is the label's value, "" for no label, None to leave it.
    ``handed_over``: the label of the NVIDIADriver that the node belonged to goes, whoever has set it.
    """

    state: str | None = ""
    handed_over: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)


NO_MARKS: Final = UpgradeMarks()
_UPGRADE_ANNOTATIONS: Final = (names.DRIVER_UPGRADE_ENABLED, names.DRIVER_UPGRADE_INITIAL, names.NEXT_DRIVER)


def label_plan(
    node: ClusterNode, rules: LabelRules, owner: str | None = "", marks: UpgradeMarks = NO_MARKS
) -> NodeLabels | None:
    """The labels and annotations to apply to a Node, None where nothing is to be changed.

    ``owner`` is the NVIDIADriver that the node belongs to, "" for none, None to leave that label as it is.
    """
    labels = node.labels
    operands = wanted_operands(node, rules)
    concerned = rules.active and (names.LABEL_GPU_PRESENT in labels or has_accelerators(node))
    mine = {key: value for key, value in operands.items() if key in node.owned or _is_free(labels.get(key), rules)}
    clear = (
        [key for key in STATE_KEYS if labels.get(key) == TRUE and key not in operands and key not in node.owned]
        if concerned
        else []
    )
    if rules.active:
        _present(node, mine)
        _vendor(node, operands, mine, clear)
        _owner(node, owner, mine, clear if rules.driver_crd or marks.handed_over else [])
        _agent(node, rules, mine, clear)
        _upgrade(node, marks.state, mine, clear)
        if mine.get(names.LABEL_GPU_PRESENT, labels.get(names.LABEL_GPU_PRESENT)) == TRUE:
            _extras(node, rules, mine)
    notes = {
        key: value
        for key, value in ({**marks.annotations, **_mig_mark(node, mine)} if rules.active else {}).items()
        if key in node.owned_annotations or node.annotations.get(key) != value
    }
    stale = rules.active and is_gpu(node)
    strange = tuple(
        key
        for key in _UPGRADE_ANNOTATIONS
        if stale and key in node.annotations and key not in marks.annotations and key not in node.owned_annotations
    )
    same = node.owned == mine.keys() and all(labels.get(key) == value for key, value in mine.items())
    noted = node.owned_annotations == notes.keys() and all(
        node.annotations.get(key) == value for key, value in notes.items()
    )
    if same and noted and not clear and not strange:
        return None
    return NodeLabels(
        name=node.name, labels=mine, clear=tuple(sorted(clear)), annotations=notes, clear_annotations=strange
    )


def _is_free(value: str | None, rules: LabelRules) -> bool:
    """Whether an operand's label with this value is the operator's to set."""
    return not value or (rules.mig_manager and value == names.PAUSED_FOR_MIG_CHANGE)


def applied(node: ClusterNode, plan: NodeLabels | None) -> ClusterNode:
    """The Node as it will be once the plan has been carried out."""
    if plan is None:
        return node
    gone = node.owned - plan.labels.keys()
    kept = {key: value for key, value in node.labels.items() if key not in gone and key not in plan.clear}
    return replace(
        node,
        labels={**kept, **plan.labels},
        owned=frozenset(plan.labels),
        annotations={
            **{
                key: value
                for key, value in node.annotations.items()
                if key not in node.owned_annotations and key not in plan.clear_annotations
            },
            **plan.annotations,
        },
        owned_annotations=frozenset(plan.annotations),
    )


def _force(node: ClusterNode, mine: dict[str, str], key: str, value: str) -> None:
    """Require a value. A label that another manager has set to the same value stays theirs."""
    if key in node.owned or node.labels.get(key) != value:
        mine[key] = value


def _present(node: ClusterNode, mine: dict[str, str]) -> None:
    key = names.LABEL_GPU_PRESENT
    if is_gpu(node):
        _force(node, mine, key, TRUE)
    elif node.labels.get(key) == TRUE or key in node.owned:
        mine[key] = FALSE


def _vendor(node: ClusterNode, operands: Mapping[str, str], mine: dict[str, str], clear: list[str]) -> None:
    """By its vendor, and by its DeviceConfig, a node's agent knows what there is to do for it."""
    served = bool(operands) and not is_gpu(node)
    wanted = {names.LABEL_VENDOR: vendor_of(node), names.LABEL_DEVICE_CONFIG: node.device_config}
    for key, value in wanted.items():
        if served and value:
            mine[key] = value
        elif key in node.labels and key not in node.owned:
            clear.append(key)


def _agent(node: ClusterNode, rules: LabelRules, mine: dict[str, str], clear: list[str]) -> None:
    if rules.agents and node.os == "linux" and not node.aside and (rules.everywhere or _has_work(node, mine, clear)):
        _force(node, mine, AGENT, TRUE)
    elif rules.agents and (AGENT in node.owned or node.agent is not None) and not is_cleaned(node):
        _force(node, mine, AGENT, LEAVING)
    elif has_agent(node) and AGENT not in node.owned:
        clear.append(AGENT)


def _has_work(node: ClusterNode, mine: Mapping[str, str], clear: list[str]) -> bool:
    """Whether an operand's label will give the agent work, whoever has set it; a paused operand counts."""
    for key in WORK:
        stays = key not in node.owned and key not in clear
        if (mine.get(key) or (node.labels.get(key, "") if stays else "")) not in {"", FALSE}:
            return True
    return False


def _owner(node: ClusterNode, owner: str | None, mine: dict[str, str], clear: list[str]) -> None:
    key = names.LABEL_DRIVER_OWNER
    if owner:
        _force(node, mine, key, owner)
    elif owner is None:
        if key in node.owned:
            mine[key] = node.labels.get(key, "")
    elif key in node.labels and key not in node.owned:
        clear.append(key)


def _upgrade(node: ClusterNode, state: str | None, mine: dict[str, str], clear: list[str]) -> None:
    key = names.DRIVER_UPGRADE_STATE_LABEL
    if state:
        _force(node, mine, key, state)
    elif state is None:
        if key in node.owned:
            mine[key] = node.labels.get(key, "")
    elif key in node.labels and key not in node.owned and is_gpu(node):
        clear.append(key)


def _extras(node: ClusterNode, rules: LabelRules, mine: dict[str, str]) -> None:
    key = names.MIG_CONFIG_LABEL
    free = key in node.owned or key not in node.labels
    if rules.mig_default and free and mig_capable(node) and not opted_out(node):
        mine[key] = rules.mig_default


def _mig_mark(node: ClusterNode, mine: Mapping[str, str]) -> dict[str, str]:
    """The annotation that lets a default layout act. ``all-disabled`` on a node without a label does not, as it never
    did with earlier versions: slices that are there stay. A default that was changed acts.
    """
    layout = mine.get(names.MIG_CONFIG_LABEL, "")
    key = names.MIG_DEFAULT_ANNOTATION
    written = node.labels.get(names.MIG_CONFIG_LABEL, "") if names.MIG_CONFIG_LABEL in node.owned else ""
    marked = key in node.owned_annotations and node.annotations.get(key) == layout
    acts = layout != ALL_DISABLED or (written not in ("", layout)) or marked
    return {key: layout} if layout and acts else {}
