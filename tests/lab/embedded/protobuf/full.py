"""Manifests with the fields whose protobuf is not like their JSON: embedded structs, names that differ, unions, times.

A real server must accept each of them (``tests/lab/real/test_embedded_protobuf.py``).
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
LABELS = {"app": "x"}
SELECTOR = {"matchLabels": LABELS, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}
HTTP = {"httpGet": {"path": "/", "port": "web", "httpHeaders": [{"name": "A", "value": ""}]}}
ONE = {"name": "a", "image": "b"}
CLIENT = {"url": "https://example.invalid/", "caBundle": ""}
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"], "scope": "*"}


def kind(api: str, name: str, **rest: Any) -> Object:
    return {"apiVersion": api, "kind": name, "metadata": {"name": "full"}, **rest}


POD = kind(
    "v1",
    "Pod",
    spec={
        "activeDeadlineSeconds": 100,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "shareProcessNamespace": False,
        "dnsConfig": {"options": [{"name": "ndots", "value": ""}, {"name": "b"}]},
        "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["a"]}],
        "securityContext": {"runAsUser": 0, "fsGroup": 7, "supplementalGroups": [1, 2, 300], "sysctls": []},
        "readinessGates": [{"conditionType": "a.b/c"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": SELECTOR}
        ],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 3, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}}
                ]
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a", "labelSelector": {}}]
            },
        },
        "tolerations": [{"operator": "Exists", "tolerationSeconds": 0, "effect": "NoExecute"}],
        "initContainers": [{**ONE, "name": "init", "restartPolicy": "Always", "startupProbe": HTTP}],
        "containers": [
            {
                **ONE,
                "command": ["sh", "-c", ""],
                "tty": True,
                "ports": [{"name": "web", "containerPort": 80, "protocol": "UDP"}],
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c", "optional": False}}, {"secretRef": {"name": "s"}}],
                "env": [
                    {"name": "EMPTY", "value": ""},
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k", "optional": True}}},
                    {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                ],
                "resources": {"limits": {"cpu": "0.5", "memory": "1.5Gi", "example.com/gpu": 2}},
                "livenessProbe": {**HTTP, "initialDelaySeconds": 0, "terminationGracePeriodSeconds": 5},
                "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 3},
                "startupProbe": {"grpc": {"port": 5, "service": ""}},
                "lifecycle": {
                    "preStop": {"sleep": {"seconds": 0}},
                    "postStart": {"httpGet": {"port": 80, "host": "a"}},
                },
                "securityContext": {
                    "privileged": False,
                    "capabilities": {"add": ["SYS_TIME"], "drop": []},
                    "seccompProfile": {"type": "RuntimeDefault"},
                    "runAsGroup": 0,
                    "seLinuxOptions": {},
                },
                "volumeMounts": [{"name": "v0", "mountPath": "/a", "readOnly": True, "subPath": "b"}],
            }
        ],
        "volumes": [
            {"name": f"v{number}", **source}
            for number, source in enumerate(
                (
                    {"emptyDir": {}},
                    {"emptyDir": {"sizeLimit": "0.1Mi", "medium": "Memory"}},
                    {"hostPath": {"path": "/x", "type": ""}},
                    {"configMap": {"name": "c", "defaultMode": 0, "items": [{"key": "a", "path": "b", "mode": 511}]}},
                    {"secret": {"secretName": "s", "optional": False}},
                    {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                    {"persistentVolumeClaim": {"claimName": "c"}},
                    {"nfs": {"server": "s", "path": "/"}},
                    {"csi": {"driver": "d.e", "volumeAttributes": {"a": ""}, "readOnly": False}},
                    {"image": {"reference": "a"}},
                    {"iscsi": {"targetPortal": "a", "iqn": "iqn.2001-04.com.example:x", "lun": 0}},
                    {"fc": {"wwids": ["a"]}},
                    {"rbd": {"monitors": ["a"], "image": "b"}},
                    {"glusterfs": {"endpoints": "a", "path": "b"}},
                    {"ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {
                        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}}}},
                    {"projected": {"sources": [
                        {"serviceAccountToken": {"path": "t", "expirationSeconds": 600}},
                        {"configMap": {"name": "c"}},
                        {"secret": {"name": "c", "items": [{"key": "a", "path": "b"}]}},
                        {"downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {
                            "containerName": "a", "resource": "limits.memory"}}]}},
                    ]}},
                )
            )
        ],
    },
)  # fmt: skip

SCHEMA: Object = {
    "type": "object",
    "description": "",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "a": {"type": "string", "default": "", "enum": ["", "b"], "minLength": 0, "pattern": "^.*$", "nullable": True},
        "b": {"type": "number", "minimum": 0, "maximum": 1.5, "multipleOf": 0.5, "example": {"a": [1, None, 2.5]}},
        "c": {"type": "object", "additionalProperties": {"type": "string", "format": "byte"}},
        "d": {"type": "object", "additionalProperties": True},
        "e": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
        },
        "f": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "g": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
            "externalDocs": {"url": "u"},
            "not": {"required": ["zzz"]},
        },
        "h": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "message": "m", "reason": "FieldValueInvalid"}]},
        "i": {"type": "object", "default": {"a": {"b": [1, "c", False]}}, "x-kubernetes-preserve-unknown-fields": True},
    },
}  # fmt: skip

FULL: list[Object] = [
    POD,
    kind("v1", "ReplicationController", spec={
        "replicas": 0, "selector": LABELS, "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [ONE]}}}),
    kind("v1", "PodTemplate", template={"metadata": {"labels": LABELS}, "spec": {"containers": [ONE]}}),
    kind("v1", "Endpoints", subsets=[{
        "addresses": [{"ip": "10.0.0.1", "nodeName": "n", "targetRef": {"kind": "Pod", "name": "p"}}], "ports": [{"port": 1}]}]),
    kind("v1", "ConfigMap", data={"a": "", "b": "ü\n"}, binaryData={"c": "AAH/", "d": ""}, immutable=False),
    kind("v1", "PersistentVolume", spec={
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "csi": {"driver": "d.e", "volumeHandle": "h"},
        "claimRef": {"name": "c", "namespace": "default"}, "mountOptions": ["a"], "volumeMode": "Block"}),
    kind("apps/v1", "ControllerRevision", revision=3, data={"a": [1, 2.5, None, "ü"], "b": {"c": {}}}),
    kind("apps/v1", "Deployment", spec={
        "paused": True, "selector": SELECTOR | {"matchExpressions": []}, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}},
        "template": {"metadata": {"labels": LABELS, "annotations": {"a": ""}}, "spec": {"containers": [ONE]}}}),
    kind("batch/v1", "Job", spec={
        "completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 0, "suspend": True,
        "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1, 2, 255]}}]},
        "successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
        "template": {"spec": {"restartPolicy": "Never", "containers": [ONE]}}}),
    kind("autoscaling/v2", "HorizontalPodAutoscaler", spec={
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 3,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [
            {"type": "Pods", "value": 1, "periodSeconds": 60}], "tolerance": "0.1"}},
        "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
            {"type": "External", "external": {"metric": {"name": "m", "selector": SELECTOR}, "target": {"type": "Value", "value": "1500m"}}}]}),
    kind("networking.k8s.io/v1", "Ingress", spec={
        "tls": [{"hosts": ["a.b"], "secretName": ""}], "defaultBackend": {"resource": {"apiGroup": "a.b", "kind": "K", "name": "n"}},
        "rules": [{"host": "a.b", "http": {"paths": [{"path": "/", "pathType": "Exact", "backend": {
            "service": {"name": "s", "port": {"name": "web"}}}}]}}]}),
    kind("networking.k8s.io/v1", "IngressClass", spec={
        "controller": "a.b/c", "parameters": {"apiGroup": "a.b", "kind": "K", "name": "n", "scope": "Cluster"}}),
    kind("networking.k8s.io/v1", "NetworkPolicy", spec={
        "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}],
        "egress": [{"ports": [{"port": "web"}, {"port": 80, "endPort": 90, "protocol": "TCP"}], "to": [
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}, {"namespaceSelector": {}}]}]}),
    kind("discovery.k8s.io/v1", "EndpointSlice", addressType="IPv4", ports=[{"name": "", "port": 80, "protocol": "TCP"}],
         endpoints=[{"addresses": ["10.0.0.1"], "conditions": {"ready": False}, "hints": {"forZones": [{"name": "z"}]},
                     "deprecatedTopology": {}}]),
    kind("coordination.k8s.io/v1", "Lease", spec={
        "holderIdentity": "h", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000006Z",
        "acquireTime": "1969-12-31T23:59:59.500000Z", "leaseTransitions": 0}),
    kind("policy/v1", "PodDisruptionBudget", spec={"maxUnavailable": 0, "selector": SELECTOR}),
    kind("rbac.authorization.k8s.io/v1", "ClusterRole", rules=None, aggregationRule={"clusterRoleSelectors": [SELECTOR]}),
    kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", subjects=[{"kind": "User", "name": "u"}], roleRef={
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nobody"}),
    kind("scheduling.k8s.io/v1", "PriorityClass", value=-5, globalDefault=False, description="", preemptionPolicy="Never"),
    kind("storage.k8s.io/v1", "StorageClass", provisioner="a.b/c", parameters={"a": ""}, allowVolumeExpansion=False,
         allowedTopologies=[{"matchLabelExpressions": [{"key": "a", "values": ["b"]}]}]),
    kind("storage.k8s.io/v1", "CSIDriver", spec={"attachRequired": False, "tokenRequests": [{"audience": ""}]}),
    kind("storage.k8s.io/v1", "CSINode", spec={"drivers": [
        {"name": "d.e", "nodeID": "n", "topologyKeys": ["a"], "allocatable": {"count": 0}}]}),
    kind("storage.k8s.io/v1", "VolumeAttachment", spec={
        "attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}}),
    kind("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", webhooks=[{
        "name": "a.b.c", "clientConfig": CLIENT, "rules": [RULE], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "objectSelector": SELECTOR, "timeoutSeconds": 3, "matchConditions": [{"name": "m", "expression": "true"}]}]),
    kind("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", webhooks=[{
        "name": "a.b.c", "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/p", "port": 8443}},
        "rules": [RULE], "sideEffects": "None", "admissionReviewVersions": ["v1"], "reinvocationPolicy": "IfNeeded"}]),
    kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", spec={
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [{**RULE, "resourceNames": ["a"]}], "namespaceSelector": {}},
        "variables": [{"name": "v", "expression": "1"}], "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}],
        "validations": [{"expression": "true", "messageExpression": "'m'", "reason": "Invalid"}]}),
    kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", spec={
        "policyName": "p", "validationActions": ["Deny"], "paramRef": {"selector": SELECTOR, "parameterNotFoundAction": "Deny"}}),
    kind("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", spec={
        "matchingPrecedence": 9000, "priorityLevelConfiguration": {"name": "global-default"},
        "distinguisherMethod": {"type": "ByUser"}, "rules": [{
            "subjects": [{"kind": "Group", "group": {"name": "g"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}),
    kind("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", spec={
        "type": "Limited", "limited": {"nominalConcurrencyShares": 0, "limitResponse": {
            "type": "Queue", "queuing": {"queues": 64, "handSize": 6, "queueLengthLimit": 50}}}}),
    {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.full.example.com"}, "spec": {
        "group": "full.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 1,
        "insecureSkipTLSVerify": True, "service": {"name": "s", "namespace": "n"}}},
    {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "fulls.example.com"},
     "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "fulls", "kind": "Full", "shortNames": ["fu"]},
        "conversion": {"strategy": "None"}, "versions": [{
            "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"}},
            "selectableFields": [{"jsonPath": ".a"}],
            "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".a", "priority": 0}]}]}},
    {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "full"}, "eventTime": "2026-01-02T03:04:05.678901Z",
     "reportingController": "a.b/c", "reportingInstance": "i", "action": "A", "reason": "R", "type": "Normal", "note": "n",
     "regarding": {"kind": "Pod", "name": "p"}, "series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}},
    kind("resource.k8s.io/v1", "DeviceClass", spec={
        "selectors": [{"cel": {"expression": "true"}}],
        "config": [{"opaque": {"driver": "d.e", "parameters": {"apiVersion": "v1", "kind": "K", "a": [1, None]}}}]}),
    kind("resource.k8s.io/v1", "ResourceClaimTemplate", spec={"metadata": {"labels": LABELS}, "spec": {"devices": {
        "requests": [
            {"name": "r", "exactly": {"deviceClassName": "c", "count": 2, "tolerations": []}},
            {"name": "s", "firstAvailable": [{"name": "t", "deviceClassName": "c", "allocationMode": "All"}]}],
        "constraints": [{"requests": ["r"], "matchAttribute": "d.e/a"}],
        "config": [{"requests": ["r"], "opaque": {"driver": "d.e", "parameters": {"b": {}}}}]}}}),
    kind("resource.k8s.io/v1", "ResourceSlice", spec={
        "driver": "d.e", "nodeName": "n", "pool": {"name": "p", "generation": 0, "resourceSliceCount": 1},
        "devices": [{"name": "g", "capacity": {"memory": {"value": "80Gi"}}, "attributes": {
            "a": {"int": 0}, "b": {"bool": False}, "c": {"string": ""}, "d": {"version": "1.2.3"}}}]}),
]  # fmt: skip
