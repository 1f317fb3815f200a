"""Writes the parts of charts/kgpu that come from the code: ``crds/``, ``values.schema.json``, ``values.names.json``,
``values.unbuilt.json``, ``agents.json`` (the accounts and DaemonSets of all that run as agents) and the rights of
``kgpu doctor`` (``templates/doctor.yaml``; the same in docs/how-to/doctor-rights.yaml), and the policy that checks
parameters of claims (``templates/claimparameters.yaml``, by ``claim_policy.py``).

``python tools/chart.py`` rewrites the files; with ``--check`` it exits 1 when one is not current. The schema of a
section of values is the one of the ClusterPolicy's section of that name, with the values that only the chart knows.
The names alone are for the templates, which can't read the schema; the notes name fields that are not built.
"""

from __future__ import annotations

import copy
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from kgpu.doctor.read_kinds import KINDS
from kgpu.formats import yaml
from kgpu.formats.crd import field_support
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.definitions import crds
from kgpu.formats.names import AGENT_DAEMON_SET
from kgpu.formats.operands import BY_ROLE
from kgpu.hw.vendor import vendor_names
from kgpu.monitoring.alerts import ALERTS
from kgpu.monitoring.model import DURATION

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import claim_policy  # noqa: E402

CHART = ROOT / "charts" / "kgpu"
Schema = dict[str, Any]

TEXT: Schema = {"type": ["string", "null"]}
TEXTS: Schema = {"type": ["array", "null"], "items": {"type": "string"}}
SWITCH: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {}
MAP: Schema = {"type": ["object", "null"]}
LIST: Schema = {"type": ["array", "null"]}
LABELS: Schema = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
AMOUNTS: Schema = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number"]}}


def struct(**properties: Schema) -> Schema:
    return {"type": ["object", "null"], "properties": properties}


def choice(*values: str) -> Schema:
    return {"enum": list(values)}


def spec_of(crd: str) -> Schema:
    """The spec of a custom resource, as strict as the API server is, but for its rules in CEL."""
    found = next(one for one in crds() if one["metadata"]["name"] == crd)
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return {**_checked(spec), "type": ["object", "null"]}


def _checked(schema: Schema) -> Schema:
    found = {
        key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key not in _INNER
    }  # fmt: skip
    if "properties" in schema:
        found["properties"] = {key: _checked(value) for key, value in schema["properties"].items()}
    return found | {key: _checked(schema[key]) for key in ("items", "additionalProperties") if key in schema}


_INNER = frozenset({"properties", "items", "additionalProperties", "format", "default"})
ALERT = struct(
    enabled=SWITCH, threshold={"type": "number"}, severity={"type": "string", "minLength": 1},
    **{"for": {"type": "string", "minLength": 1, "pattern": f"^(?:{DURATION.pattern})$"}},
)  # fmt: skip
CONFIG_MAP = {"create": SWITCH, "data": LABELS}
POD_DELETION = struct(force=SWITCH, timeoutSeconds=COUNT, deleteEmptyDir=SWITCH)
# What the chart has beyond the ClusterPolicy's own sections; "a.b" is inside a section.
ADDED: dict[str, Schema] = {
    "image": struct(
        repository={"type": "string", "minLength": 1}, tag=SCALAR, digest=TEXT,
        pullPolicy=choice("Always", "IfNotPresent", "Never"),
    ),
    "imagePullSecrets": TEXTS,
    "layout": choice("agent", "operands"),
    "vendors": {"type": ["array", "null"], "items": choice(*vendor_names()), "uniqueItems": True},
    "deviceConfigs": struct(enabled=SWITCH),
    "agent": struct(nodes=choice("gpu", "all"), nodeSelector=LABELS),
    "allocation": choice("device-plugin", "dra"),
    "dra": struct(
        enabled=SWITCH, featureGates={"type": ["object", "null"], "additionalProperties": SWITCH},
        webhook=struct(enabled=SWITCH, failurePolicy=choice("Fail", "Ignore")),
        deviceClasses=struct(nvidia=SWITCH, amd=SWITCH, gaudi=SWITCH),
    ),
    "admissionPolicy": struct(enabled=SWITCH),
    "health": struct(enabled=SWITCH, config=MAP),
    "operations": struct(
        enabled=SWITCH, maxParallel=COUNT, maxUnavailable={"type": ["integer", "string"]},
        groups={"type": ["array", "null"], "items": struct(label={"type": "string"}, maxUnavailable=COUNT)},
        maxPerHour={**COUNT, "type": ["integer", "null"]}, allowForce=SWITCH,
        windows={
            "type": ["array", "null"],
            "items": struct(days=TEXTS, start={"type": "string"}, end={"type": "string"}, timeZone={"type": "string"}),
        },
        remediation=struct(
            policy={"enum": ["Off", "Suggest", "Reset", "Reboot", "Replace", False]}, attempts=COUNT, drain=MAP
        ),
        mig=struct(drain=choice("node", "gpu", "none"), eviction=MAP),
        notifications=struct(
            cluster={"type": "string"},
            webhook=struct(
                url={"type": "string"}, secretName={"type": "string"}, minSeverity=choice("info", "warning"),
                format=choice("CloudEvents", "Text"),
            ),
        ),
    ),
    "usage": struct(
        enabled=SWITCH, labels=TEXTS,
        history=struct(
            enabled=SWITCH, size={"type": "string", "minLength": 1},
            retention={"type": "string", "pattern": "^[0-9]+d$"}, throughApiServer=SWITCH,
            persistence=struct(enabled=SWITCH, storageClass={"type": "string"}, existingClaim={"type": "string"}),
        ),
        prices=struct(configMap={"type": "string"}, ofPolicies=TEXTS),
        reclaim=struct(enabled=SWITCH, namespaces=TEXTS, secrets=TEXTS, barePods=SWITCH),
        policy=spec_of("gpuusagepolicies.kgpu.dev"),
    ),
    "doctor": struct(hostFacts=struct(enabled=SWITCH), clusterRole=struct(enabled=SWITCH, labels=LABELS)),
    "monitoring": struct(
        rules=struct(enabled=SWITCH, alerts=struct(**{alert.name: ALERT for alert in ALERTS})),
        scrape=struct(kind=choice("ServiceMonitor", "PodMonitor"), scheme=choice("", "http", "https"), tlsConfig=MAP,
                      basicAuth=MAP),
        dashboards=struct(enabled=SWITCH, labels=LABELS, annotations=LABELS),
    ),
    "overview": struct(enabled=SWITCH, doctor=SWITCH, throughApiServer=SWITCH, **{"from": LIST}, resources=MAP),
    "networkPolicy": struct(enabled=SWITCH, metricsFrom=LIST),
    "platform": struct(openshift=SWITCH),
    "nfd": struct(enabled=SWITCH, other=choice("detect", "present", "ignore"), nodefeaturerules=SWITCH),
    "operator.replicas": COUNT,
    "operator.repository": TEXT,
    "operator.image": TEXT,
    "operator.version": SCALAR,
    "operator.imagePullPolicy": TEXT,
    "operator.imagePullSecrets": TEXTS,
    "operator.priorityClassName": TEXT,
    "operator.defaultGPUMode": TEXT,
    "operator.otherOperator": choice("detect", "ignore"),
    "operator.cleanupCRD": SWITCH,
    "operator.upgradeCRD": SWITCH,
    "operator.cleanup": SWITCH,
    "operator.nodeSelector": LABELS,
    "operator.tolerations": LIST,
    "operator.affinity": MAP,
    "operator.env": {"type": ["array", "null"], "items": struct(name={"type": "string"}, value=SCALAR, valueFrom=MAP)},
    "operator.logging": struct(
        level={"enum": ["debug", "info", "warn", "warning", "error", "dpanic", "panic", "fatal"]},
        format=choice("text", "json"), timeEncoding=TEXT, develMode=SWITCH,
    ),
    "operator.resources": struct(limits=AMOUNTS, requests=AMOUNTS, claims=LIST),
    "driver.nvidiaDriverCRD": struct(
        enabled=SWITCH, deployDefaultCR=SWITCH, driverType=choice("gpu", "vgpu", "vgpu-host-manager"),
        nodeSelector=LABELS,
    ),
    "driver.upgradePolicy.gpuPodDeletion": POD_DELETION,
    "driver.rollingUpdate": MAP,
    "devicePlugin.config.create": SWITCH,
    "devicePlugin.config.data": LABELS,
    "migManager.config.create": SWITCH,
    "migManager.config.data": LABELS,
    "dcgmExporter.config.create": SWITCH,
    "dcgmExporter.config.data": LABELS,
    "clusterPolicy": struct(deployCR=SWITCH),
    "gpuCluster": struct(deployCR=SWITCH),
    "draDriver": MAP,
    "extraObjects": {"type": ["array", "null"], "items": {"type": ["object", "string"]}},
    "node-feature-discovery": MAP,
    "global": MAP,
}  # fmt: skip
NOTE = (
    "Made by tools/chart.py. Unknown names are refused by templates/unknown.yaml, which says what was meant; so "
    "there is no additionalProperties here."
)


def of_values(schema: Schema, name: str = "") -> Schema:
    """A ClusterPolicy's schema as one of values: empty is allowed, numbers are where people leave out quotes."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string", "null"]}
    if kind == "object":
        found: Schema = {"type": ["object", "null"]}
        if "properties" in schema:
            found["properties"] = {key: of_values(value, key) for key, value in schema["properties"].items()}
        elif isinstance(schema.get("additionalProperties"), dict):
            found["additionalProperties"] = of_values(schema["additionalProperties"])
    elif kind == "array":
        found = {"type": ["array", "null"], "items": of_values(schema["items"])}
    elif name in {"version", "value", "maxUnavailable"}:
        found = dict(SCALAR)
    elif "enum" in schema:
        found = {"enum": [*schema["enum"], *([] if "" in schema["enum"] else [""])]}
    else:
        found = {"type": [kind, "null"]} if kind else {}
        found |= {key: schema[key] for key in ("minimum", "maximum") if key in schema}
    if text := schema.get("description"):
        found["description"] = text
    return found


def values_schema() -> Schema:
    policy = crds()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    sections = of_values(policy)["properties"]
    for path, added in ADDED.items():
        *outer, name = path.split(".")
        place = sections
        for part in outer:
            place = place.setdefault(part, struct()).setdefault("properties", {})
        place[name] = copy.deepcopy(added)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": NOTE,
        "title": "Values of the chart kgpu",
        "type": "object",
        "properties": dict(sorted(sections.items())),
    }


def names(schema: Schema) -> Schema:
    """The names that there may be at each place; an empty map stands for any, that of a list is for its items."""
    inner = schema.get("items", schema)
    return {name: names(value) for name, value in sorted(inner.get("properties", {}).items())}


DOCTOR = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: kgpu-doctor
"""
DOCTOR_IN_CHART = """\
{{- /* Made by tools/chart.py. What `kgpu doctor` and `kgpu collect` read, and nothing else; bound to nobody. A role
of this name that was made by hand stays. */ -}}
{{- $there := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "kgpu-doctor" }}
{{- $labels := dig "metadata" "labels" dict ($there | default dict) | default dict }}
{{- $ours := or (empty $there) (eq (get $labels "app.kubernetes.io/managed-by") .Release.Service) }}
{{- if and .Values.doctor.clusterRole.enabled $ours }}
"""
LABELLED = """\
  labels:
    {{- include "kgpu.labels" . | nindent 4 }}
    {{- with .Values.doctor.clusterRole.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
"""
DOCTOR_IN_DOCS = """\
# What `kgpu doctor` and `kgpu collect` read: rights to read, and nothing else. Made by tools/chart.py. The chart brings
# the same role: with it the binding alone is needed. Put your users or groups in place of the one below. What is not
# granted is told as not looked at, and everything else counts; only nodes and pods must be readable.
"""
BINDING = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: kgpu-doctor
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kgpu-doctor}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: Group, name: gpu-watchers}
"""
EMPTY = '""'
POD_LOGS = """\
  # The last lines that the pods of the GPU stack, and GPU pods that fail, have written.
  - apiGroups: [""]
    resources: [pods/log]
    verbs: [get]
"""


def doctor_rules() -> str:
    """The rights of the doctor, from the table of what it lists."""
    groups: dict[str, list[str]] = {}
    for one in KINDS:
        groups.setdefault(one.resource.group, []).append(one.resource.plural)
    lines = ["rules:"]
    for group, plurals in groups.items():
        lines.append(f"  - apiGroups: [{group or EMPTY}]")
        lines += textwrap.wrap(
            f"[{', '.join(plurals)}]", 118, initial_indent="    resources: ", subsequent_indent="      "
        )
        lines.append("    verbs: [list]")
    return "\n".join(lines) + "\n" + POD_LOGS


def unbuilt() -> list[Schema]:
    """Values of which nothing comes yet, as the templates read them; in a policy ``decode`` finds the same."""
    return [
        {"path": leaf.path, "instead": leaf.says, "quiet": list(leaf.quiet),
         "switches": [{"path": name, "on": on} for name, on in leaf.switches]}
        for leaf in field_support.unbuilt(ClusterPolicySpec)
    ]  # fmt: skip


def files() -> dict[Path, str]:
    """What each file has to say."""
    schema = values_schema()
    found = {
        CHART / "values.schema.json": json.dumps(schema, indent=1) + "\n",
        CHART / "values.names.json": json.dumps(names(schema), indent=1) + "\n",
        CHART / "values.unbuilt.json": json.dumps(unbuilt(), indent=1) + "\n",
        CHART / "agents.json": json.dumps(agents(), indent=1) + "\n",
    }
    rules = doctor_rules()
    found[CHART / "templates" / "doctor.yaml"] = DOCTOR_IN_CHART + DOCTOR + LABELLED + rules + "{{- end }}\n"
    found[ROOT / "docs" / "how-to" / "doctor-rights.yaml"] = DOCTOR_IN_DOCS + DOCTOR + rules + BINDING
    found[CHART / "templates" / "claimparameters.yaml"] = claim_policy.template()
    for crd in crds():
        found[CHART / "crds" / f"{crd['metadata']['name']}.yaml"] = yaml.dump(crd)
    return found


def agents() -> dict[str, list[str]]:
    """What runs as an agent, in both layouts."""
    operands = BY_ROLE.values()
    return {
        "accounts": list(dict.fromkeys((AGENT_DAEMON_SET, *(operand.account for operand in operands)))),
        "daemonSets": list(dict.fromkeys((AGENT_DAEMON_SET, *(operand.daemon_set for operand in operands)))),
    }


def main(arguments: list[str]) -> int:
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is not current; run: python tools/chart.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(files()[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
