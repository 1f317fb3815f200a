"""The commands that several rules propose, each kind built once: whatever is put into one stays one word of it.

A function makes the step of a finding. A row of ``Sign`` takes the template itself, in capitals: its ``{node}``,
``{namespace}``, ``{name}`` and ``{policy}`` are filled in where the sentence is found; ``filled`` puts in what is known
before. A sentence about a command (``drain(node).why("...")``) stands above it in a report.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.remedy import Remedy, words

DRAIN: Final = "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
"""Never forced: ``draining`` names the pods that it would end for good."""
REBOOT: Final = (DRAIN, "then reboot it")
CORDON: Final = "kubectl cordon {node}"
LABEL: Final = "kubectl label node {node} {key}={value}"
LABEL_ANEW: Final = "kubectl label node {node} {key}={value} --overwrite"
RELABEL: Final = "kubectl label node {node} {key}- && kubectl label node {node} {key}={value}"
"""For who acts when a label changes: the same value once more is no change."""
TAINT: Final = "kubectl taint node {node} {taint}"
DESCRIBE_NODE: Final = "kubectl describe node {node}"
NODE_FIELD: Final = "kubectl get node {node} -o jsonpath='{{.{field}}}'"
CUDA_OF_NODE: Final = (
    "kubectl get node {node} -L nvidia.com/cuda.driver-version.full -L nvidia.com/cuda.runtime-version.full"
)
PODS_ON: Final = "kubectl get pods -A --field-selector spec.nodeName={node}"
PODS_ON_WIDE: Final = "kubectl get pods -A -o wide --field-selector spec.nodeName={node}"
DELETE_POD: Final = "kubectl -n {namespace} delete pod {name}"
DESCRIBE_POD: Final = "kubectl -n {namespace} describe pod {name}"
EXEC: Final = "kubectl -n {namespace} exec {name} -- "
"""What is to be run in the pod's container stands behind it."""
PATCH_POLICY: Final = "kubectl patch clusterpolicy {policy} --type merge -p {change}"
_HELM_SET: Final = "helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --reuse-values --set {setting}"
SHOW_OPERATION: Final = "kgpu operations show {name}"
PLAN_OPERATION: Final = "kgpu operations plan {name}"
ASK_DOCTOR: Final = "kgpu doctor node {node}"
XID: Final = "kgpu xid {xid}"
CDI_ANEW: Final = Remedy("kgpu cdi generate --output /var/run/cdi/nvidia.yaml")
DEVICE_LINKS: Final = Remedy("nvidia-ctk system create-dev-char-symlinks --create-all")
"""The links below /dev/char, by which systemd knows a container's devices when it reloads."""
_LABELS: Final = "kubectl label node {node} --overwrite {labels}"
_UNLABEL: Final = "kubectl label node {node} {key}-"
_UNLABEL_ALL: Final = "kubectl label nodes --all {key}-"
_LABEL_NAMESPACE: Final = "kubectl label namespace {namespace} {key}={value} --overwrite"
_UNCORDON: Final = "kubectl uncordon {node}"
_MOVE: Final = CORDON + "; " + DELETE_POD + "; " + _UNCORDON
_DELETE: Final = "kubectl -n {namespace} delete {kind} {name}"
_DESCRIBE: Final = "kubectl -n {namespace} describe {kind} {name}"
_EDIT: Final = "kubectl -n {namespace} edit {kind} {name}"
_LOGS: Final = "kubectl -n {namespace} logs {name} {options}"
_PATCH: Final = "kubectl -n {namespace} patch {kind} {name} --type merge -p {change}"
_PATCH_WIDE: Final = "kubectl patch {kind} {name} --type merge -p {change}"
_RESTART: Final = "kubectl -n {namespace} rollout restart daemonset {name}"
_SCALE: Final = "kubectl -n {namespace} scale {kind} {name} --replicas={replicas}"
SET_ENV: Final = "kubectl -n {namespace} set env {workload} {change}"
_FROM_FILE: Final = (
    "kubectl -n {namespace} create configmap {name} --from-file={key}=FILE --dry-run=client -o yaml"
    " | kubectl apply -f -"
)
_RUNTIME_CLASS: Final = (
    "kubectl apply -f - <<EOF\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\n"
    "metadata: {{name: {name}}}\nhandler: {name}\nEOF"
)


def filled(template: str, **known: str) -> str:
    """The template of a row with what is known, each value one word; the other places stay."""
    for key, value in known.items():
        template = template.replace(f"{{{key}}}", shlex.quote(value).replace("{", "{{").replace("}", "}}"))
    return template


def policy_row(spec: Mapping[str, Any]) -> str:
    """The template that sets these fields of the spec of the ClusterPolicy in force."""
    return filled(PATCH_POLICY, change=_merge({"spec": spec}))


def drain(node: str) -> Remedy:
    """Empty a node."""
    return Remedy(DRAIN, node=node)


def reboot(node: str, then: str = "") -> tuple[Remedy, Remedy]:
    """Empty a node and reboot it. ``then``: kgpu's own words about what comes after that."""
    return drain(node), Remedy("then reboot it; {}", then) if then else Remedy("then reboot it")


def cordon(node: str) -> Remedy:
    """Keep new pods off a node."""
    return Remedy(CORDON, node=node)


def uncordon(node: str) -> Remedy:
    """Let pods onto a node again."""
    return Remedy(_UNCORDON, node=node)


def label(node: str, key: str, value: str, *, anew: bool = False) -> Remedy:
    """Set a label of a node. ``anew``: it may have another value."""
    return Remedy(LABEL_ANEW if anew else LABEL, node=node, key=key, value=value)


def labels(node: str, *pairs: str) -> Remedy:
    """Set labels of a node, each given as ``key=value``, whatever they are now."""
    return Remedy(_LABELS, node=node, labels=words(*pairs))


def relabel(node: str, key: str, value: str) -> Remedy:
    """Take a label away and set it, so that it changes also where it has that value."""
    return Remedy(RELABEL, node=node, key=key, value=value)


def unlabel(node: str, key: str) -> Remedy:
    """Take a label off a node."""
    return Remedy(_UNLABEL, node=node, key=key)


def unlabel_all(key: str) -> Remedy:
    """Take a label off every node."""
    return Remedy(_UNLABEL_ALL, key=key)


def label_namespace(namespace: str, key: str, value: str) -> Remedy:
    """Set a label of a namespace, whatever it is now."""
    return Remedy(_LABEL_NAMESPACE, namespace=namespace, key=key, value=value)


def taint(node: str, *changes: str) -> Remedy:
    """Change a node's taints: ``key=value:Effect`` sets one, ``key-`` and ``key:Effect-`` take them away."""
    return Remedy(TAINT, node=node, taint=words(*changes))


def describe_node(node: str) -> Remedy:
    """All that is known of a node."""
    return Remedy(DESCRIBE_NODE, node=node)


def node_field(node: str, field: str) -> Remedy:
    """One field of a node, by its path."""
    return Remedy(NODE_FIELD, node=node, field=field)


def pods_on(node: str, *, wide: bool = False) -> Remedy:
    """The pods of a node. ``wide``: with their addresses."""
    return Remedy(PODS_ON_WIDE if wide else PODS_ON, node=node)


def run_in(namespace: str, pod: str, *command: str) -> Remedy:
    """Run a program in a pod's container."""
    return Remedy(EXEC + "{command}", namespace=namespace, name=pod, command=words(*command))


def delete_pod(namespace: str, *pods: str) -> Remedy:
    """End pods; whoever makes them makes them anew."""
    return Remedy(DELETE_POD, namespace=namespace, name=words(*pods))


def move_pod(node: str, namespace: str, pod: str) -> Remedy:
    """Have a pod made anew on another node than its own."""
    return Remedy(_MOVE, node=node, namespace=namespace, name=pod)


def delete(namespace: str, kind: str, name: str) -> Remedy:
    """Delete an object of another kind."""
    return Remedy(_DELETE, namespace=namespace, kind=kind, name=name)


def describe(namespace: str, kind: str, name: str) -> Remedy:
    """All that is known of an object, with its events."""
    return Remedy(_DESCRIBE, namespace=namespace, kind=kind, name=name)


def edit(namespace: str, kind: str, name: str) -> Remedy:
    """Change an object in an editor, where what is to be written is for its owner to decide."""
    return Remedy(_EDIT, namespace=namespace, kind=kind, name=name)


def logs(namespace: str, pod: str, *options: str) -> Remedy:
    """What a pod has written: with options such as ``"-c", container`` and ``"--tail=50"``."""
    return Remedy(_LOGS, namespace=namespace, name=pod, options=words(*options))


def patch(namespace: str, kind: str, name: str, change: Mapping[str, Any]) -> Remedy:
    """Set these fields of an object and leave the others as they are."""
    return Remedy(_PATCH, namespace=namespace, kind=kind, name=name, change=_merge(change))


def patch_wide(kind: str, name: str, change: Mapping[str, Any]) -> Remedy:
    """Set these fields of an object that has no namespace and leave the others as they are."""
    return Remedy(_PATCH_WIDE, kind=kind, name=name, change=_merge(change))


def patch_policy(policy: str, change: Mapping[str, Any]) -> Remedy:
    """Set these fields of a ClusterPolicy and leave the others as they are."""
    return Remedy(PATCH_POLICY, policy=policy, change=_merge(change))


def restart_daemonset(namespace: str, name: str) -> Remedy:
    """Make a DaemonSet's pods anew, one after another."""
    return Remedy(_RESTART, namespace=namespace, name=name)


def scale(namespace: str, kind: str, name: str, replicas: int) -> Remedy:
    """Have so many pods of a workload."""
    return Remedy(_SCALE, namespace=namespace, kind=kind, name=name, replicas=replicas)


def set_env(namespace: str, workload: str, change: str) -> Remedy:
    """Change a variable of a workload's containers: ``NAME=value``, or ``NAME-``."""
    return Remedy(SET_ENV, namespace=namespace, workload=workload, change=change)


def config_map_of_file(namespace: str, name: str, key: str) -> Remedy:
    """Put a file into a ConfigMap, in place of what it has. A step above says what FILE is."""
    return Remedy(_FROM_FILE, namespace=namespace, name=name, key=key)


def runtime_class(name: str) -> Remedy:
    """Make a RuntimeClass of the engine's handler of that name."""
    return Remedy(_RUNTIME_CLASS, name=name)


def restart_service(unit: str) -> Remedy:
    """Start a service of the node itself anew."""
    return Remedy("systemctl restart {}", unit)


def helm_set(setting: str) -> Remedy:
    """Change one value of the operator's Helm release."""
    return Remedy(_HELM_SET, setting=setting)


def ask_doctor(node: str) -> Remedy:
    """What the doctor says of a node."""
    return Remedy(ASK_DOCTOR, node=node)


def show_operation(name: str) -> Remedy:
    """All that is known of one of kgpu's operations on a node."""
    return Remedy(SHOW_OPERATION, name=name)


def plan_operation(name: str) -> Remedy:
    """Which pods an operation would move, and which may not go."""
    return Remedy(PLAN_OPERATION, name=name)


def approve_operation(name: str) -> Remedy:
    """Let an operation begin."""
    return Remedy("kgpu operations approve {name}", name=name)


def cancel_operation(name: str) -> Remedy:
    """End an operation and give its node back."""
    return Remedy("kgpu operations cancel {name}", name=name)


def bundle_of_operation(name: str) -> Remedy:
    """Fetch what was known of a node before its operation emptied it."""
    return Remedy("kgpu operations bundle {name}", name=name)


def resume_operation(name: str) -> Remedy:
    """Say that a maintenance or the wait for a machine is over, and give its node back."""
    return Remedy("kgpu operations resume {name}", name=name)


def explain_xid(code: int) -> Remedy:
    """What an Xid means, and what is to be done about it."""
    return Remedy(XID, xid=code)


def _merge(change: Mapping[str, Any]) -> str:
    return json.dumps(change, ensure_ascii=False, separators=(",", ":"))
