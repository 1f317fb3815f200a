"""Whether one operand works on one node: a check per operand, the cause where it does not.

``CHECKS`` has those that need more than "its role, or its pod, runs there".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kgpu.base.suggest import did_you_mean
from kgpu.fit.plain import mapping, number, strings
from kgpu.formats import names
from kgpu.operator.causes import Cause, View, word
from kgpu.operator.labels import deploy
from kgpu.operator.model import Layout, Node
from kgpu.operator.tables import Operand


def paused(operand: Operand, node: Node) -> Cause | None:
    """That an upgrade has stopped an operand on a node."""
    key = deploy(operand.deploy)
    if names.PAUSED_FOR_DRIVER_UPGRADE not in node.labels.get(key, ""):
        return None
    return Cause(
        reason="Paused",
        text="paused for a driver upgrade",
        remedy=f"if none is under way there: kubectl label node {node.name} {key}=true --overwrite",
        passing=True,
    )


def role(view: View, operand: Operand, node: Node) -> Cause | None:
    """An operand that is a role of the agent, or a DaemonSet of its own."""
    stopped = paused(operand, node)
    if stopped is not None:
        return stopped
    if view.settings.layout is Layout.AGENT:
        return view.role(node, operand.role)
    return _own_pod(view, operand, node)


def _own_pod(view: View, operand: Operand, node: Node) -> Cause | None:
    live = view.observed.daemon_sets.get(operand.daemon_set, {})
    settled = rolled_out(live)
    found = view.pod(node, operand.daemon_set, running=settled)
    if found is not None:
        return found
    if not settled and not any(key[0] == operand.daemon_set for key in view.troubles):
        return Cause(reason="RollingOut", text=f"DaemonSet {operand.daemon_set} is being rolled out", passing=True)
    # A report that is on the Node is of an agent that was there before: pods of single operands write none.
    return None


def rolled_out(live: Mapping[str, Any]) -> bool:
    """True when a DaemonSet's pods are all there, of its present generation and available."""
    status, metadata = mapping(live.get("status")), mapping(live.get("metadata"))
    desired = number(status.get("desiredNumberScheduled"))
    up_to_date = number(status.get("observedGeneration")) >= number(metadata.get("generation"))
    counts = {number(status.get("updatedNumberScheduled")), number(status.get("numberAvailable"))}
    return bool(status) and up_to_date and counts == {desired}


def _validator(view: View, operand: Operand, node: Node) -> Cause | None:
    stopped = paused(operand, node)
    if stopped is not None:
        return stopped
    agent = view.agent(node) if view.settings.layout is Layout.AGENT else _own_pod(view, operand, node)
    said = node.conditions.get(names.VALIDATED_CONDITION)
    if agent is not None and not (agent.passing and said is not None and said.status == "False"):
        return agent
    if said is not None and said.status == "True":
        return None
    if said is not None and said.status == "False":
        return Cause(reason=word(said.reason, "ValidationFailed"), text=" ".join(said.message.split())[:600])
    waiting = role(view, operand, node)
    return waiting or Cause(reason="NotValidatedYet", text="its GPUs have not been validated yet", passing=True)


def _device_plugin(view: View, operand: Operand, node: Node) -> Cause | None:
    chosen = _config_key(view, node)
    if chosen is not None:
        return chosen
    found = role(view, operand, node)
    if found is not None:
        return found
    short = [
        f"{name}: {node.allocatable.get(name, 0)} of {count} allocatable"
        for name, count in sorted(node.capacity.items())
        if node.allocatable.get(name, 0) < count
    ]
    if short:
        return Cause(
            reason="DevicesUnhealthy",
            text=", ".join(short),
            remedy=f"see the node's Events for the device and the reason: kubectl describe node {node.name}",
        )
    if not any(node.allocatable.values()):
        return Cause(reason="NotOfferedYet", text="the kubelet offers no GPU yet", passing=True)
    return None


def config_map(view: View) -> Cause | None:
    """The ConfigMap of configurations that the policy names and that is not there, or has not got the default."""
    config = view.policy.spec.device_plugin.config
    if not config.name:
        return None
    keys = view.observed.config_maps.get(config.name)
    where = f"ConfigMap {view.settings.namespace}/{config.name}"
    if keys is None:
        hint = did_you_mean(config.name, view.observed.config_maps)
        return Cause(
            reason="ConfigMapMissing",
            text=f"devicePlugin.config names {where}, which does not exist{'; ' if hint else ''}{hint}",
            remedy=f"make it: kubectl -n {view.settings.namespace} create configmap {config.name} --from-file=DIR",
            cluster=True,
        )
    if config.default and config.default not in keys:
        return _no_key(where, "devicePlugin.config.default", config.default, keys, cluster=True)
    return None


def _config_key(view: View, node: Node) -> Cause | None:
    config = view.policy.spec.device_plugin.config
    chosen = node.labels.get(names.DEVICE_PLUGIN_CONFIG_LABEL)
    keys = view.observed.config_maps.get(config.name) if config.name else None
    if not chosen or keys is None or chosen in keys:
        return None
    where = f"ConfigMap {view.settings.namespace}/{config.name}"
    return _no_key(where, f"the node label {names.DEVICE_PLUGIN_CONFIG_LABEL}", chosen, keys)


def _no_key(where: str, by: str, key: str, keys: frozenset[str], *, cluster: bool = False) -> Cause:
    known = ", ".join(sorted(keys)[:20]) or "none at all"
    hint = did_you_mean(key, sorted(keys))
    return Cause(
        reason="ConfigKeyMissing",
        text=f'{by} chooses "{key[:63]}", which {where} has not got; it has: {known}{"; " if hint else ""}{hint}',
        remedy="choose one of these, or add it to the ConfigMap",
        cluster=cluster,
    )


def _driver(view: View, operand: Operand, node: Node) -> Cause | None:
    report = node.report
    on_host = report is not None and report.driver_source == "host"
    if on_host or node.labels.get(deploy(operand.deploy)) == names.PRE_INSTALLED:
        return None
    stopped = paused(operand, node)
    if stopped is not None:
        return stopped
    owner = node.labels.get(names.LABEL_DRIVER_OWNER, "")
    if view.policy.spec.driver.use_nvidia_driver_crd and owner in view.lame:
        return Cause(reason="DriverNotReady", text=f"its NVIDIADriver {owner} brings no driver: {view.lame[owner]}")
    fitting = [name for name, one in view.wanted.items() if is_driver(one) and _selects(one, node)]
    if not fitting:
        system = f"{node.os_id} {node.os_version}".strip() or "unknown"
        return Cause(
            reason="NoDriverForNode",
            text=f"no driver is meant for it (operating system {system}, kernel {node.kernel or 'unknown'})",
            remedy=(
                f"make an NVIDIADriver that selects it: kubectl get node {node.name} --show-labels"
                if view.policy.spec.driver.use_nvidia_driver_crd
                else "install a driver on the node, or set driver.image for its operating system"
            ),
        )
    there = report is not None and bool(report.driver)
    for name in sorted(fitting):
        cause = view.pod(node, name, running=there)
        if cause is not None:
            return cause
    if report is not None and not report.driver:
        return Cause(reason="DriverNotReady", text="no driver is loaded on it yet", passing=True)
    if report is None and not all(rolled_out(view.observed.daemon_sets.get(name, {})) for name in fitting):
        return Cause(reason="RollingOut", text=f"DaemonSet {', '.join(fitting)} is being rolled out", passing=True)
    return None


def is_driver(daemon_set: Mapping[str, Any]) -> bool:
    """True for a DaemonSet of drivers."""
    template = mapping(mapping(mapping(daemon_set.get("spec")).get("template")).get("metadata"))
    return strings(template.get("labels")).get(names.COMPONENT_LABEL) == "nvidia-driver"


def node_selector(daemon_set: Mapping[str, Any]) -> dict[str, str]:
    """The node labels that a DaemonSet's pods need."""
    template = mapping(mapping(daemon_set.get("spec")).get("template"))
    return strings(mapping(template.get("spec")).get("nodeSelector"))


def _selects(daemon_set: Mapping[str, Any], node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in node_selector(daemon_set).items())


Check: TypeAlias = Callable[[View, Operand, Node], "Cause | None"]
CHECKS: Final[Mapping[str, Check]] = {
    "validator": _validator,
    "device-plugin": _device_plugin,
    "driver": _driver,
}
