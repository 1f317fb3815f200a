"""Whether one operand works on one node: a check per operand, the cause where it does not.

``CHECKS`` has those that need more than "its role, or its pod, runs there".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kgpu.base.suggest import did_you_mean
from kgpu.fit.plain import mapping, number
from kgpu.formats import names
from kgpu.formats.agent_report import has_ended
from kgpu.formats.operands import BY_NAME, Operand
from kgpu.operator.causes import UNHEALTHY, Cause, View, word
from kgpu.operator.labels import TRUE, deploy
from kgpu.operator.loaded import other_driver
from kgpu.operator.model import Layout, Node, NodeCondition


def paused(operand: Operand, node: Node) -> Cause | None:
    """That an upgrade has stopped an operand on a node."""
    key = deploy(operand.deploy)
    if names.PAUSED_FOR_DRIVER_UPGRADE not in node.labels.get(key, ""):
        return None
    return Cause(
        reason="Paused",
        what="paused for a driver upgrade",
        remedy=f"if none is under way there: kubectl label node {node.name} {key}=true --overwrite",
        passing=True,
    )


def role(view: View, operand: Operand, node: Node) -> Cause | None:
    """An operand that is a role of the agent, or a DaemonSet of its own as the finder always is."""
    stopped = paused(operand, node)
    if stopped is not None:
        return stopped
    apart = operand.daemon_set == names.FINDER_DAEMON_SET and view.finder(node) == operand.daemon_set
    if view.settings.layout is Layout.AGENT and not apart:
        return view.role(node, operand.role)
    return _own_pod(view, operand, node)


def _own_pod(view: View, operand: Operand, node: Node) -> Cause | None:
    live = view.observed.daemon_sets.get(operand.daemon_set, {})
    settled = rolled_out(live)
    found = view.pod(node, operand.daemon_set, running=settled)
    if found is not None:
        # A pod that is there and not ready says itself what it waits for.
        if (found.passing or found.reason == UNHEALTHY) and _is_current(view, operand, node):
            return view.role_alone(node, operand.role) or dataclasses.replace(found, passing=True, remedy="")
        return found
    if not settled and operand.daemon_set not in view.in_trouble:
        return Cause(reason="RollingOut", what=f"DaemonSet {operand.daemon_set} is being rolled out", passing=True)
    report = node.reports.get(operand.role)
    if report is None:
        return Cause(reason="RoleStarting", what=f"its {_who(operand)} has not reported yet", passing=True)
    if report.generation < view.policy.generation:
        return Cause(
            reason="OldConfiguration",
            what=f"its {_who(operand)} still acts on generation {report.generation} of the policy",
            passing=True,
        )
    return view.role_alone(node, operand.role)


def _who(operand: Operand) -> str:
    """What an operand's pod is called in a sentence about it."""
    return "finder of node features" if operand.daemon_set == names.FINDER_DAEMON_SET else operand.title


def _is_current(view: View, operand: Operand, node: Node) -> bool:
    """Whether a role's own process lives and acts on this policy, so that what it says counts."""
    report = node.reports.get(operand.role)
    return report is not None and not has_ended(report) and report.generation >= view.policy.generation


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
    found = _invalid(node, said) if said is not None else None
    off = _toolkit_off(node, found) if found is not None else None
    if said is not None and said.status == "False":
        return off or found
    if off is not None:
        return dataclasses.replace(off, passing=True)  # another program may still write a spec
    waiting = role(view, operand, node)
    return waiting or Cause(reason="NotValidatedYet", what="its GPUs have not been validated yet", passing=True)


def _invalid(node: Node, said: NodeCondition) -> Cause:
    """What the validator has found; of one of another version, what it tells people."""
    reason = word(said.reason, "ValidationFailed")
    failed = node.validation.failed if node.validation is not None else None
    if failed is None:
        return Cause(reason=reason, what=" ".join(said.message.split())[:MAX_SAID])
    if failed.trouble is not None:
        troubles = [("", failed.trouble)]
    else:
        troubles = [(f"{one.name}: ", one.trouble) for one in failed.devices]
    more = f" and {failed.more} more" if failed.more else ""
    text = f"{failed.check}: {'; '.join(f'{name}{trouble.said()}' for name, trouble in troubles)}{more}"
    remedies = dict.fromkeys(trouble.remedy for _, trouble in troubles if trouble.remedy)
    return Cause(reason=reason, what=text[:MAX_SAID], quoted="; ".join(remedies)[:MAX_SAID])


def _toolkit_off(node: Node, found: Cause) -> Cause | None:
    """The cause behind a toolkit check that fails where somebody has switched the toolkit off."""
    key = deploy(BY_NAME["toolkit"].deploy)
    value = node.labels.get(key, TRUE)
    if value == TRUE or not found.reason.startswith("Toolkit"):
        return None
    return Cause(
        reason="ToolkitSwitchedOff",
        what=f'the node label {key} is "{value}", so that nothing writes CDI specs there; {found.what}',
        remedy=f"kubectl label node {node.name} {key}-",
    )


def _labels(view: View, operand: Operand, node: Node) -> Cause | None:
    """Its configuration is the device plugin's, and so is what is wrong with that."""
    return _config_key(view, node) or role(view, operand, node)


def _device_plugin(view: View, operand: Operand, node: Node) -> Cause | None:
    found = _config_key(view, node) or role(view, operand, node)
    if found is not None:
        return found
    short = [
        f"{name}: {node.allocatable.get(name, 0)} of {count} allocatable"
        for name, count in sorted(node.capacity.items())
        if node.allocatable.get(name, 0) < count
    ]
    if short and not any(node.allocatable.values()) and _is_being_checked(node):
        return Cause(
            reason="NotOfferedYet",
            what=f"{', '.join(short)}; the kubelet has not been told of them yet, or the validator will say why not",
            passing=True,
        )
    if short:
        return Cause(
            reason="DevicesUnhealthy",
            symptom=True,
            what=", ".join(short),
            remedy=f"see the node's Events for the device and the reason: kubectl describe node {node.name}",
        )
    if not any(node.allocatable.values()):
        return Cause(reason="NotOfferedYet", what="the kubelet offers no GPU yet", passing=True)
    return None


def _is_being_checked(node: Node) -> bool:
    """Whether a validator works there that calls it a failure if nothing stays allocatable, and has not done so."""
    validator = BY_NAME["validator"]
    if node.labels.get(deploy(validator.deploy)) != TRUE:
        return False
    said = node.report.roles.get(validator.role) if node.report else None
    found = node.conditions.get(names.VALIDATED_CONDITION)
    return said is not None and said.state != "failed" and (found is None or found.status != "False")


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
            what=f"devicePlugin.config names {where}, which does not exist{'; ' if hint else ''}{hint}",
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
        what=f'{by} chooses "{key[:63]}", which {where} has not got; it has: {known}{"; " if hint else ""}{hint}',
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
        why = view.lame[owner]
        what = f"its NVIDIADriver {owner} brings no driver: {why.statement}"
        return Cause(reason="DriverNotReady", what=what, remedy=why.remedy)
    fitting = view.drivers.of(node.labels)
    if not fitting:
        system = f"{node.os_id} {node.os_version}".strip() or "unknown"
        return Cause(
            reason="NoDriverForNode",
            what=f"no driver is meant for it (operating system {system}, kernel {node.kernel or 'unknown'})",
            remedy=(
                f"make an NVIDIADriver that selects it: kubectl get node {node.name} --show-labels"
                if view.policy.spec.driver.use_nvidia_driver_crd
                else "install a driver on the node, or set driver.image for its operating system"
            ),
        )
    there = report is not None and bool(report.driver)
    for name in fitting:
        cause = view.pod(node, name, running=there)
        if cause is not None:
            return cause
    if report is not None and not report.driver:
        return Cause(reason="DriverNotReady", what="no driver is loaded on it yet", passing=True)
    if report is None and not all(rolled_out(view.observed.daemon_sets.get(name, {})) for name in fitting):
        return Cause(reason="RollingOut", what=f"DaemonSet {', '.join(fitting)} is being rolled out", passing=True)
    return other_driver(view, node, fitting)


Check: TypeAlias = Callable[[View, Operand, Node], "Cause | None"]
MAX_SAID: Final = 600
CHECKS: Final[Mapping[str, Check]] = {
    "validator": _validator,
    "device-plugin": _device_plugin,
    "driver": _driver,
    "gfd": _labels,
}
