"""The operands as rows: what each is called in every place where users meet it, and which role of the agent does it.

Order is the replaced operator's order of states; conditions and ``kgpu status`` keep it. ``role`` is "" where kgpu has
nothing that does the job yet: such an operand is reported as not provided and never holds up the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgpu.formats import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One operand.

    ``section`` is the attribute of the ClusterPolicy's spec, "" for what has none. ``deploy`` is the suffix of its node
    label ``nvidia.com/gpu.deploy.<x>``, "" for what runs on every node. ``state`` is the replaced operator's word in
    status messages. ``on_when_nil`` is what an absent ``enabled`` means. ``sandbox``: only for virtual machine
    workloads. ``within`` is the operand in whose pods it runs in the layout ``operands``, "" for pods of its own.
    ``heading`` is its column's in ``kgpu status``, the name where it is "". ``without`` is what is so where nothing
    does its job, "" for no more than that. ``blind``: its role does not open the driver, so that it says nothing when
    such a role knows no GPUs. ``finder``: its role looks for GPUs, also on nodes that have no work for an agent; an
    agent that leaves such a node runs it until a pod with that role alone takes over. ``vendors`` are those on whose
    nodes its role has something to do, () for all.
    """

    name: str
    title: str
    state: str
    daemon_set: str
    account: str
    condition: str
    section: str = ""
    deploy: str = ""
    role: str = ""
    on_when_nil: bool = True
    sandbox: bool = False
    within: str = ""
    heading: str = ""
    without: str = ""
    blind: bool = False
    finder: bool = False
    vendors: tuple[str, ...] = ()


_NVIDIA: Final = (names.NVIDIA,)
OPERANDS: Final = (
    Operand(name="features", title="node features", state="node-features", daemon_set=names.FINDER_DAEMON_SET,
            account=names.FINDER_DAEMON_SET, condition="NodeFeaturesReady", role="features",
            blind=True, finder=True),
    Operand(name="driver", title="driver", state="state-driver", daemon_set="nvidia-driver-daemonset",
            account="nvidia-driver", condition="DriverReady", section="driver", deploy="driver"),
    Operand(name="toolkit", title="container toolkit", state="state-container-toolkit",
            daemon_set="nvidia-container-toolkit-daemonset", account="nvidia-container-toolkit",
            condition="ToolkitReady", section="toolkit", deploy="container-toolkit", role="toolkit", vendors=_NVIDIA),
    Operand(name="validator", title="validator", state="state-operator-validation",
            daemon_set=names.VALIDATOR_DAEMON_SET, account=names.VALIDATOR_DAEMON_SET, condition="ValidatorReady",
            section="validator", deploy="operator-validator", role="validator",
            heading="validated", without="its GPUs are not validated"),
    Operand(name="device-plugin", title="device plugin", state="state-device-plugin",
            daemon_set="nvidia-device-plugin-daemonset", account="nvidia-device-plugin",
            condition="DevicePluginReady", section="device_plugin", deploy="device-plugin", role="deviceplugin",
            heading="plugin", without="its GPUs are not offered"),
    Operand(name="dra", title="DRA driver", state="kgpu-dra-driver", daemon_set="kgpu-dra-driver",
            account="kgpu-dra-driver", condition="DRADriverReady", deploy="dra-driver", role="dra",
            heading="claims", without="its GPUs are given to no claim", vendors=(names.NVIDIA, names.AMD, names.GAUDI)),
    Operand(name="mps", title="MPS control daemon", state="state-mps-control-daemon",
            daemon_set="nvidia-device-plugin-mps-control-daemon", account="nvidia-device-plugin",
            condition="MPSReady", section="device_plugin", deploy="device-plugin", role="mps", vendors=_NVIDIA),
    Operand(name="dcgm", title="DCGM", state="state-dcgm", daemon_set="nvidia-dcgm", account="nvidia-dcgm",
            condition="DCGMReady", section="dcgm", deploy="dcgm"),
    Operand(name="dcgm-exporter", title="metrics exporter", state="state-dcgm-exporter",
            daemon_set="nvidia-dcgm-exporter", account="nvidia-dcgm-exporter", condition="DCGMExporterReady",
            section="dcgm_exporter", deploy="dcgm-exporter", role="exporter", heading="metrics"),
    # It runs where GPUs are looked after at all, and stops with the validator while a driver is exchanged.
    Operand(name="health", title="GPU health", state="kgpu-gpu-health", daemon_set="kgpu-gpu-health",
            account="kgpu-gpu-health", condition="GPUHealthReady", deploy="operator-validator", role="health"),
    # It counts wherever GPUs are looked after, also while a driver is exchanged: then what they do is unknown.
    Operand(name="usage", title="GPU usage", state="kgpu-gpu-usage", daemon_set=names.USAGE_DAEMON_SET,
            account=names.USAGE_DAEMON_SET, condition="GPUUsageReady", deploy="operator-validator", role="usage"),
    # No pod of its own for a line of a log every hour.
    Operand(name="probe", title="host facts", state="kgpu-host-facts", daemon_set=names.VALIDATOR_DAEMON_SET,
            account=names.VALIDATOR_DAEMON_SET, condition="HostFactsReady", deploy="operator-validator", role="probe",
            within="validator"),
    Operand(name="gfd", title="GPU feature discovery", state="gpu-feature-discovery",
            daemon_set="gpu-feature-discovery", account="nvidia-gpu-feature-discovery",
            condition="FeatureDiscoveryReady", section="gfd", deploy="gpu-feature-discovery", role="labels",
            heading="labels"),
    Operand(name="mig-manager", title="MIG manager", state="state-mig-manager", daemon_set="nvidia-mig-manager",
            account="nvidia-mig-manager", condition="MIGManagerReady", section="mig_manager", deploy="mig-manager",
            role="mig-manager", heading="MIG", vendors=_NVIDIA),
    Operand(name="config-manager", title="device config manager", state="kgpu-device-config-manager",
            daemon_set="kgpu-device-config-manager", account="kgpu-device-config-manager",
            condition="DeviceConfigManagerReady", deploy="device-config-manager", role="device-config-manager",
            heading="partitions", vendors=(names.AMD,)),
    Operand(name="node-status-exporter", title="node status exporter", state="state-node-status-exporter",
            daemon_set="nvidia-node-status-exporter", account="nvidia-node-status-exporter",
            condition="NodeStatusExporterReady", section="node_status_exporter", deploy="node-status-exporter",
            role="node-status", on_when_nil=False, heading="status", blind=True, vendors=_NVIDIA),
)  # fmt: skip

BY_NAME: Final = {operand.name: operand for operand in OPERANDS}
BY_ROLE: Final = {operand.role: operand for operand in OPERANDS if operand.role}
BLIND: Final = frozenset(role for role, operand in BY_ROLE.items() if operand.blind)
"""The roles that do not open the driver."""
FINDERS: Final = frozenset(role for role, operand in BY_ROLE.items() if operand.finder)
"""The roles that look for GPUs."""
DAEMON_SETS: Final = {operand.daemon_set: operand for operand in OPERANDS if not operand.within}
"""The operands that have a DaemonSet, by its name."""


def roles_on(vendor: str) -> frozenset[str]:
    """The roles that have something to do on a node with this vendor's accelerators."""
    return frozenset(row.role for row in OPERANDS if row.role and (not row.vendors or vendor in row.vendors))
