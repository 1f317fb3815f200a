"""Good and bad manifests, and updates, that the real API server and the embedded rules must judge alike.

A row is a base manifest and what is laid over it; ``patch`` makes it an update (a merge patch of the base as created).
The rows say nothing of the verdict: the real server does, in ``tests/lab/real/test_embedded_validation.py``.
"""

from __future__ import annotations

from typing import Any

from tests.lab.embedded.types.row import GPU, Object, Row, laid, rows_of

CONTAINER: Object = {"name": "a", "image": "busybox"}
POD: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [CONTAINER]}}
LABELS = {"app": "x"}
TEMPLATE: Object = {"metadata": {"labels": LABELS}, "spec": {"containers": [CONTAINER]}}


def kind(api: str, name: str, spec: Object | None = None, **rest: Any) -> Object:
    found: Object = {"apiVersion": api, "kind": name, "metadata": {"name": "x"}, **rest}
    return found if spec is None else {**found, "spec": spec}


def workload(name: str, **rest: Any) -> Object:
    return kind("apps/v1", name, {"selector": {"matchLabels": LABELS}, "template": TEMPLATE, **rest})


JOB = kind("batch/v1", "Job", {"template": laid(TEMPLATE, {"spec": {"restartPolicy": "Never"}})})
CRON = kind("batch/v1", "CronJob", {"schedule": "*/5 * * * *", "jobTemplate": {"spec": JOB["spec"]}})
SERVICE = kind("v1", "Service", {"ports": [{"port": 80}], "selector": LABELS})
CLAIM = kind(
    "v1", "PersistentVolumeClaim", {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
)
VOLUME = kind(
    "v1",
    "PersistentVolume",
    {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}},
)
QUOTA = kind("v1", "ResourceQuota", {"hard": {"pods": "4", f"requests.{GPU}": "4"}})
LIMITS = kind(
    "v1", "LimitRange", {"limits": [{"type": "Container", "max": {"cpu": "2", GPU: "2"}, "min": {"cpu": "100m"}}]}
)
INGRESS_PATH: Object = {
    "path": "/",
    "pathType": "Prefix",
    "backend": {"service": {"name": "s", "port": {"number": 80}}},
}
INGRESS = kind("networking.k8s.io/v1", "Ingress", {"rules": [{"host": "a.b", "http": {"paths": [INGRESS_PATH]}}]})
POLICY = kind("networking.k8s.io/v1", "NetworkPolicy", {"podSelector": {}})
ROLE = kind(
    "rbac.authorization.k8s.io/v1", "Role", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
)
BINDING = kind(
    "rbac.authorization.k8s.io/v1", "RoleBinding", roleRef={"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"},
    subjects=[{"kind": "ServiceAccount", "name": "d", "namespace": "default"}, {"kind": "User", "name": "u"}],
)  # fmt: skip
PRIORITY = kind("scheduling.k8s.io/v1", "PriorityClass", value=1000)
RUNTIME = kind("node.k8s.io/v1", "RuntimeClass", handler="nvidia")
LEASE = kind("coordination.k8s.io/v1", "Lease", {"holderIdentity": "me", "leaseDurationSeconds": 15})
BUDGET = kind("policy/v1", "PodDisruptionBudget", {"minAvailable": 1, "selector": {"matchLabels": LABELS}})
SCALER = kind(
    "autoscaling/v2",
    "HorizontalPodAutoscaler",
    {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}},
)
STORAGE = kind("storage.k8s.io/v1", "StorageClass", provisioner="example.com/p")
NODE = kind("v1", "Node", {})
CLAIMED = kind(
    "resource.k8s.io/v1",
    "ResourceClaim",
    {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
)
CLASS = kind(
    "resource.k8s.io/v1", "DeviceClass", {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}
)
EVENT = kind(
    "v1",
    "Event",
    involvedObject={"kind": "Pod", "name": "p", "namespace": "NAMESPACE"},
    reason="R",
    message="m",
    type="Normal",
)
CONFIG = kind("v1", "ConfigMap", data={"a": "b"})
SECRET = kind("v1", "Secret", stringData={"a": "b"})


def container(**over: Any) -> Object:
    return {"spec": {"containers": [{**CONTAINER, **over}]}}


def resources(limits: Object | None = None, requests: Object | None = None) -> Object:
    return container(resources={key: value for key, value in (("limits", limits), ("requests", requests)) if value})


def template(**spec: Any) -> Object:
    return {"spec": {"template": {"spec": spec}}}


# Base -> what is laid over it, by the row's name.
CREATES: dict[str, tuple[Object, dict[str, Object]]] = {
    "pod": (POD, {
        "plain": {},
        "gpu": resources({GPU: 1}),
        "gpu-half": resources({GPU: "0.5"}),
        "gpu-500m": resources({GPU: "500m"}),
        "gpu-requests-only": resources(None, {GPU: 1}),
        "gpu-unequal": resources({GPU: 2}, {GPU: 1}),
        "gpu-equal": resources({GPU: 2}, {GPU: 2}),
        "gpu-negative": resources({GPU: -1}),
        "cpu-half": resources({"cpu": "0.5", "memory": "1.5Gi"}),
        "cpu-odd": resources({"cpu": "1.500", "memory": "1e3"}),
        "cpu-micro": resources({"cpu": "100u"}),
        "requests-above": resources({"cpu": 1}, {"cpu": 2}),
        "resource-unknown": resources({"gpus": 1}),
        "resource-malformed": resources({"nvidia.com/gpu/x": 1}),
        "resource-requests-prefix": resources({"requests.nvidia.com/gpu": 1}, {"requests.nvidia.com/gpu": 1}),
        "hugepages": resources({"hugepages-2Mi": "4Mi", "memory": "1Gi"}),
        "hugepages-odd": resources({"hugepages-2Mi": "3Mi", "memory": "1Gi"}),
        "hugepages-alone": resources({"hugepages-2Mi": "4Mi"}),
        "quantity-wrong": resources({"cpu": "1xi"}),
        "no-containers": {"spec": {"containers": []}},
        "no-image": {"spec": {"containers": [{"name": "a"}]}},
        "image-padded": container(image=" busybox "),
        "image-digest": container(image="busybox@sha256:" + "a" * 64),
        "image-port": container(image="localhost:5000/x:v1"),
        "image-latest": container(image="nvcr.io/nvidia/cuda:latest"),
        "no-name": {"metadata": {"name": None}},
        "name-upper": {"metadata": {"name": "Abc"}},
        "name-long": {"metadata": {"name": "a" * 254}},
        "name-dotted": {"metadata": {"name": "a.b"}},
        "container-upper": container(name="A_b"),
        "container-dotted": container(name="a.b"),
        "container-twice": {"spec": {"containers": [CONTAINER, CONTAINER]}},
        "init": {"spec": {"initContainers": [{"name": "i", "image": "x:1"}]}},
        "init-same-name": {"spec": {"initContainers": [CONTAINER]}},
        "init-probe": {"spec": {"initContainers": [{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["a"]}}}]}},
        "sidecar": {"spec": {"initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always", "readinessProbe": {"tcpSocket": {"port": 80}}}]}},
        "label-key": {"metadata": {"labels": {"a b": "c"}}},
        "label-key-slashes": {"metadata": {"labels": {"a/b/c": "d"}}},
        "label-key-long": {"metadata": {"labels": {"a" * 64: "d"}}},
        "label-value": {"metadata": {"labels": {"a": "b c"}}},
        "label-value-long": {"metadata": {"labels": {"a": "b" * 64}}},
        "annotation-key": {"metadata": {"annotations": {"a b": "c"}}},
        "annotation-size": {"metadata": {"annotations": {"a": "b" * (257 * 1024)}}},
        "owner-empty": {"metadata": {"ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]}},
        "owner-two-controllers": {"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "controller": True},
            {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "2", "controller": True},
        ]}},
        "finalizer-bare": {"metadata": {"finalizers": ["mine"]}},
        "finalizer-good": {"metadata": {"finalizers": ["example.com/mine"]}},
        "generate-name": {"metadata": {"name": None, "generateName": "abc-"}},
        "restart-unknown": {"spec": {"restartPolicy": "Sometimes"}},
        "dns-unknown": {"spec": {"dnsPolicy": "Mine"}},
        "dns-none": {"spec": {"dnsPolicy": "None"}},
        "dns-config": {"spec": {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.2.3.4"], "searches": ["a.b"], "options": [{"name": "ndots", "value": "2"}]}}},
        "dns-bad-ip": {"spec": {"dnsConfig": {"nameservers": ["1.2.3"]}}},
        "pull-policy": container(imagePullPolicy="Often"),
        "message-policy": container(terminationMessagePolicy="None"),
        "port": container(ports=[{"containerPort": 80, "name": "http"}]),
        "port-zero": container(ports=[{"name": "http"}]),
        "port-high": container(ports=[{"containerPort": 70000}]),
        "port-name": container(ports=[{"containerPort": 80, "name": "NOT_good--"}]),
        "port-name-twice": container(ports=[{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]),
        "port-protocol": container(ports=[{"containerPort": 80, "protocol": "tcp"}]),
        "host-port-twice": container(ports=[{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]),
        "host-network": laid(container(ports=[{"containerPort": 80}]), {"spec": {"hostNetwork": True}}),
        "host-network-other-port": laid(container(ports=[{"containerPort": 80, "hostPort": 81}]), {"spec": {"hostNetwork": True}}),
        "env": container(env=[{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        "env-no-name": container(env=[{"value": "b"}]),
        "env-name": container(env=[{"name": "a=b", "value": "b"}]),
        "env-field": container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.owner"}}}]),
        "env-field-unsupported": container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]),
        "env-label": container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}]),
        "env-both": container(env=[{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        "env-neither": container(env=[{"name": "A", "valueFrom": {}}]),
        "env-secret-key": container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
        "env-resource": container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]),
        "env-resource-gpu": container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.nvidia.com/gpu"}}}]),
        "env-from-none": container(envFrom=[{}]),
        "env-from": container(envFrom=[{"configMapRef": {"name": "c"}, "prefix": "P_"}]),
        "mount-missing": container(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        "mount": laid(container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), {"spec": {"volumes": [{"name": "v"}]}}),
        "mount-twice": laid(container(volumeMounts=[{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]), {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        "mount-up": laid(container(volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "../x"}]), {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        "mount-bidirectional": laid(container(volumeMounts=[{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]), {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
        "volume-twice": {"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}},
        "volume-two-sources": {"spec": {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}},
        "volume-host-path": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/dev/nvidia0", "type": "CharDevice"}}]}},
        "volume-host-path-type": {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x", "type": "Any"}}]}},
        "volume-config-map": {"spec": {"volumes": [{"name": "v", "configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}}]}},
        "volume-config-map-path": {"spec": {"volumes": [{"name": "v", "configMap": {"name": "c", "items": [{"key": "a", "path": "/b"}]}}]}},
        "volume-secret": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 0o600}}]}},
        "volume-secret-mode": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 4096}}]}},
        "volume-shm": {"spec": {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}},
        "volume-shm-negative": {"spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "-1"}}]}},
        "volume-claim": {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": ""}}]}},
        "volume-downward": {"spec": {"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}},
        "volume-nfs": {"spec": {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "x"}}]}},
        "volume-name": {"spec": {"volumes": [{"name": "V_", "emptyDir": {}}]}},
        "volume-image": {"spec": {"volumes": [{"name": "v", "image": {"reference": "x:1"}}]}},
        "probe": container(livenessProbe={"httpGet": {"port": 80}}, readinessProbe={"exec": {"command": ["true"]}}, startupProbe={"grpc": {"port": 90}}),
        "probe-none": container(livenessProbe={}),
        "probe-two": container(livenessProbe={"exec": {"command": ["a"]}, "tcpSocket": {"port": 80}}),
        "probe-success": container(livenessProbe={"tcpSocket": {"port": 80}, "successThreshold": 2}),
        "probe-negative": container(readinessProbe={"tcpSocket": {"port": "x_"}, "periodSeconds": -1}),
        "lifecycle-sleep": container(lifecycle={"preStop": {"sleep": {"seconds": 40}}}),
        "toleration": {"spec": {"tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]}},
        "toleration-all": {"spec": {"tolerations": [{"operator": "Exists"}]}},
        "toleration-no-key": {"spec": {"tolerations": [{"operator": "Equal", "value": "x"}]}},
        "toleration-exists-value": {"spec": {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}},
        "toleration-operator": {"spec": {"tolerations": [{"key": "a", "operator": "Like", "value": "x"}]}},
        "toleration-effect": {"spec": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "Never"}]}},
        "toleration-seconds": {"spec": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]}},
        "node-selector": {"spec": {"nodeSelector": {"nvidia.com/gpu.product": "Tesla T4"}}},
        "node-affinity": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]}]}]}}}}},
        "node-affinity-no-terms": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}},
        "node-affinity-gt": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}]}}}}},
        "node-affinity-operator": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]}}}}},
        "node-affinity-weight": {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}}}},
        "pod-affinity-no-topology": {"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": LABELS}}]}}}},
        "pod-anti-affinity": {"metadata": {"labels": LABELS}, "spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": LABELS}, "topologyKey": "kubernetes.io/hostname", "matchLabelKeys": ["app"]}]}}}},
        "spread": {"spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": LABELS}}]}},
        "spread-wrong": {"spec": {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Maybe"}]}},
        "spread-domains": {"spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]}},
        "gates": {"spec": {"schedulingGates": [{"name": "example.com/g"}]}},
        "gates-twice": {"spec": {"schedulingGates": [{"name": "example.com/g"}, {"name": "example.com/g"}]}},
        "gates-bound": {"spec": {"nodeName": "n", "schedulingGates": [{"name": "example.com/g"}]}},
        "deadline": {"spec": {"activeDeadlineSeconds": 0}},
        "security": container(securityContext={"runAsUser": -1}),
        "security-privileged": container(securityContext={"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}}),
        "seccomp": {"spec": {"securityContext": {"seccompProfile": {"type": "Localhost"}}}},
        "fs-group": {"spec": {"securityContext": {"fsGroup": 1000, "supplementalGroups": [-2]}}},
        "hostname": {"spec": {"hostname": "A"}},
        "priority-missing": {"spec": {"priorityClassName": "nobody"}},
        "priority-system": {"spec": {"priorityClassName": "system-node-critical"}},
        "priority-number": {"spec": {"priority": 5}},
        "runtime-missing": {"spec": {"runtimeClassName": "nvidia"}},
        "overhead": {"spec": {"overhead": {"cpu": "1"}}},
        "account-missing": {"spec": {"serviceAccountName": "nobody"}},
        "no-token": {"spec": {"automountServiceAccountToken": False}},
        "claims": laid(container(resources={"claims": [{"name": "g"}]}), {"spec": {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}}),
        "claims-missing": container(resources={"claims": [{"name": "g"}]}),
        "claims-neither": {"spec": {"resourceClaims": [{"name": "g"}]}},
        "ephemeral": {"spec": {"ephemeralContainers": [{"name": "e", "image": "x"}]}},
        "pod-level": laid(resources({"cpu": "1"}), {"spec": {"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}}),
        "pod-level-gpu": {"spec": {"resources": {"limits": {GPU: "2"}}}},
        "host-users": {"spec": {"hostUsers": False, "hostPID": True}},
        "os": {"spec": {"os": {"name": "bsd"}}},
        "unknown-namespace": {"metadata": {"namespace": "elsewhere"}},
        "spec-type": {"spec": {"containers": "x"}},
    }),
    "deployment": (workload("Deployment"), {
        "plain": {},
        "no-selector": {"spec": {"selector": None}},
        "empty-selector": {"spec": {"selector": {"=": {}}}},
        "mismatch": {"spec": {"selector": {"matchLabels": {"=": {"a": "b"}}}}},
        "replicas": {"spec": {"replicas": -1}},
        "recreate": {"spec": {"strategy": {"type": "Recreate"}}},
        "recreate-rolling": {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}},
        "strategy": {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}},
        "strategy-percent": {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": "120%"}}}},
        "strategy-text": {"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": "some"}}}},
        "restart": template(restartPolicy="Never"),
        "deadline": {"spec": {"progressDeadlineSeconds": 5, "minReadySeconds": 10}},
        "gpu-half": template(containers=[{**CONTAINER, "resources": {"limits": {GPU: "0.5"}}}]),
        "selector-operator": {"spec": {"selector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}},
    }),
    "replica-set": (workload("ReplicaSet"), {"plain": {}, "mismatch": {"spec": {"selector": {"matchLabels": {"=": {"a": "b"}}}}}}),
    "daemon-set": (workload("DaemonSet"), {
        "plain": {},
        "mismatch": {"spec": {"selector": {"matchLabels": {"=": {"a": "b"}}}}},
        "surge": {"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}},
        "restart": template(restartPolicy="OnFailure"),
    }),
    "stateful-set": (workload("StatefulSet", serviceName="s"), {
        "plain": {},
        "claims": {"spec": {"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": CLAIM["spec"]}]}},
        "management": {"spec": {"podManagementPolicy": "Any"}},
        "name": {"metadata": {"name": "a.b"}},
    }),
    "job": (JOB, {
        "plain": {},
        "always": template(restartPolicy="Always"),
        "negative": {"spec": {"parallelism": -1, "completions": -2}},
        "indexed": {"spec": {"completionMode": "Indexed", "completions": 4, "parallelism": 2}},
        "indexed-no-completions": {"spec": {"completionMode": "Indexed"}},
        "mode": {"spec": {"completionMode": "Some"}},
        "per-index": {"spec": {"backoffLimitPerIndex": 1}},
        "selector": {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
        "failure-policy": {"spec": {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}}},
        "failure-policy-wrong": {"spec": {"podFailurePolicy": {"rules": [{"action": "Ignore"}]}}},
        "ttl": {"spec": {"ttlSecondsAfterFinished": -1}},
    }),
    "cron-job": (CRON, {
        "plain": {},
        "schedule": {"spec": {"schedule": "every day"}},
        "schedule-range": {"spec": {"schedule": "61 * * * *"}},
        "policy": {"spec": {"concurrencyPolicy": "Maybe"}},
        "name": {"metadata": {"name": "a" * 53}},
        "zone": {"spec": {"timeZone": "Nowhere/City"}},
        "hourly": {"spec": {"schedule": "@hourly", "timeZone": "Etc/UTC"}},
    }),
    "service": (SERVICE, {
        "plain": {},
        "headless": {"spec": {"clusterIP": "None"}},
        "node-port": {"spec": {"type": "NodePort"}},
        "balancer": {"spec": {"type": "LoadBalancer"}},
        "external": {"spec": {"type": "ExternalName", "externalName": "a.b", "ports": None, "selector": None}},
        "external-none": {"spec": {"type": "ExternalName"}},
        "no-ports": {"spec": {"ports": None}},
        "two-unnamed": {"spec": {"ports": [{"port": 80}, {"port": 81}]}},
        "port": {"spec": {"ports": [{"port": 0}]}},
        "protocol": {"spec": {"ports": [{"port": 80, "protocol": "HTTP"}]}},
        "type": {"spec": {"type": "Any"}},
        "affinity": {"spec": {"sessionAffinity": "ClientIP"}},
        "name": {"metadata": {"name": "1a"}},
        "node-port-cluster": {"spec": {"ports": [{"port": 80, "nodePort": 30080}]}},
        "ip": {"spec": {"clusterIP": "1.2.3"}},
    }),
    "config-map": (CONFIG, {"plain": {}, "key": {"data": {"a b": "c"}}, "binary": {"binaryData": {"a": "YQ=="}}, "empty": {"data": None}}),
    "secret": (SECRET, {
        "plain": {},
        "tls": {"type": "kubernetes.io/tls"},
        "docker": {"type": "kubernetes.io/dockerconfigjson"},
        "key": {"stringData": {"a/b": "c"}},
        "token": {"type": "kubernetes.io/service-account-token"},
        "basic": {"type": "kubernetes.io/basic-auth"},
    }),
    "namespace": (kind("v1", "Namespace"), {"plain": {}, "dotted": {"metadata": {"name": "a.b"}}, "label": {"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}}}),
    "node": (NODE, {
        "plain": {},
        "taint": {"spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}},
        "taint-effect": {"spec": {"taints": [{"key": GPU, "effect": "Never"}]}},
        "taint-twice": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]}},
        "capacity": {"status": {"capacity": {GPU: "8", "cpu": "2"}}},
        "capacity-half": {"status": {"capacity": {GPU: "0.5"}}},
    }),
    "claim": (CLAIM, {
        "plain": {},
        "no-modes": {"spec": {"accessModes": []}},
        "mode": {"spec": {"accessModes": ["Some"]}},
        "no-size": {"spec": {"resources": {"=": {}}}},
        "size": {"spec": {"resources": {"requests": {"storage": "0"}}}},
    }),
    "volume": (VOLUME, {"plain": {}, "no-source": {"spec": {"hostPath": None}}, "no-capacity": {"spec": {"capacity": {"=": {}}}}, "policy": {"spec": {"persistentVolumeReclaimPolicy": "Keep"}}}),
    "quota": (QUOTA, {
        "plain": {},
        "limits-gpu": {"spec": {"hard": {f"limits.{GPU}": "4"}}},
        "gpu": {"spec": {"hard": {GPU: "4"}}},
        "half": {"spec": {"hard": {f"requests.{GPU}": "0.5"}}},
        "pods-half": {"spec": {"hard": {"pods": "1.5"}}},
        "unknown": {"spec": {"hard": {"gpus": "1"}}},
        "count": {"spec": {"hard": {"count/deployments.apps": "2"}}},
        "negative": {"spec": {"hard": {"pods": "-1"}}},
        "scope": {"spec": {"hard": {"=": {"pods": "4"}}, "scopes": ["BestEffort"]}},
        "scope-unfit": {"spec": {"hard": {"=": {"cpu": "4"}}, "scopes": ["BestEffort"]}},
        "scope-conflict": {"spec": {"hard": {"=": {"pods": "4"}}, "scopes": ["Terminating", "NotTerminating"]}},
        "scope-selector": {"spec": {"hard": {"=": {"pods": "4"}}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}},
        "scope-selector-wrong": {"spec": {"hard": {"=": {"pods": "4"}}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}},
    }),
    "limit-range": (LIMITS, {
        "plain": {},
        "min-max": {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}}]}},
        "default-max": {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "2"}}]}},
        "gpu-default": {"spec": {"limits": [{"type": "Container", "default": {GPU: "2"}, "defaultRequest": {GPU: "1"}}]}},
        "pod-default": {"spec": {"limits": [{"type": "Pod", "default": {"cpu": "1"}}]}},
        "type": {"spec": {"limits": [{"type": "Any"}]}},
        "twice": {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}, {"type": "Pod", "max": {"cpu": "1"}}]}},
        "ratio": {"spec": {"limits": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "0.5"}}]}},
    }),
    "ingress": (INGRESS, {
        "plain": {},
        "no-type": {"spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": INGRESS_PATH["backend"]}]}}]}},
        "relative": {"spec": {"rules": [{"http": {"paths": [{**INGRESS_PATH, "path": "x"}]}}]}},
        "nothing": {"spec": {"=": {}}},
        "host": {"spec": {"rules": [{"host": "1.2.3.4"}]}},
    }),
    "network-policy": (POLICY, {"plain": {}, "egress": {"spec": {"egress": [{}]}}, "port": {"spec": {"ingress": [{"ports": [{"port": 0}]}]}}, "peer": {"spec": {"ingress": [{"from": [{}]}]}}}),
    "role": (ROLE, {"plain": {}, "no-verbs": {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": []}]}, "urls": {"rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]}, "no-rules": {"rules": []}}),
    "role-binding": (BINDING, {"plain": {}, "kind": {"roleRef": {"kind": "Any"}}, "no-name": {"roleRef": {"name": ""}}, "subject": {"subjects": [{"kind": "Robot", "name": "r"}]}}),
    "priority-class": (PRIORITY, {"plain": {}, "too-high": {"value": 2000000000}, "system": {"metadata": {"name": "system-x"}}, "policy": {"preemptionPolicy": "Any"}}),
    "runtime-class": (RUNTIME, {"plain": {}, "handler": {"handler": "NV_"}, "overhead": {"overhead": {"podFixed": {"cpu": "0.25"}}, "scheduling": {"nodeSelector": {"a": "b"}}}}),
    "lease": (LEASE, {"plain": {}, "duration": {"spec": {"leaseDurationSeconds": 0}}, "times": {"spec": {"renewTime": "2026-01-02T03:04:05.600000Z"}}, "short-time": {"spec": {"renewTime": "2026-01-02T03:04:05Z"}}}),
    "budget": (BUDGET, {"plain": {}, "both": {"spec": {"maxUnavailable": 1}}, "percent": {"spec": {"minAvailable": "200%"}}}),
    "autoscaler": (SCALER, {"plain": {}, "max": {"spec": {"maxReplicas": 0}}, "behavior": {"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}}, "no-target": {"spec": {"scaleTargetRef": {"=": {}}}}}),
    "storage-class": (STORAGE, {"plain": {}, "mode": {"volumeBindingMode": "Later"}, "policy": {"reclaimPolicy": "Recycle"}}),
    "resource-claim": (CLAIMED, {
        "plain": {},
        "no-class": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {}}]}}},
        "neither": {"spec": {"devices": {"requests": [{"name": "gpu"}]}}},
        "all-count": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c", "allocationMode": "All", "count": 2}}]}}},
    }),
    "device-class": (CLASS, {"plain": {}, "no-cel": {"spec": {"selectors": [{}]}}}),
    "event": (EVENT, {"plain": {}, "elsewhere": {"involvedObject": {"namespace": "kube-system"}}}),
    "revision": (kind("apps/v1", "ControllerRevision", revision=1), {"plain": {"data": {"a": 1}}, "empty": {"data": {}}, "none": {}, "list": {"data": [1]}, "number": {"data": 1}, "false": {"data": False}}),
    "service-account": (kind("v1", "ServiceAccount"), {"plain": {}, "name": {"metadata": {"name": "A"}}}),
}  # fmt: skip

# Base -> merge patches of the object as it was created.
UPDATES: dict[str, tuple[Object, dict[str, Object]]] = {
    "pod-update": (POD, {
        "label": {"metadata": {"labels": {"a": "b"}}},
        "image": container(image="busybox:2"),
        "deadline": {"spec": {"activeDeadlineSeconds": 60}},
        "restart": {"spec": {"restartPolicy": "Never"}},
        "remove-containers": {"spec": {"containers": []}},
        "tolerations-gone": {"spec": {"tolerations": []}},
        "name": {"metadata": {"name": "other"}},
        "finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
    }),
    "deployment-update": (workload("Deployment", replicas=0), {
        "replicas": {"spec": {"replicas": 3}},
        "selector": {"spec": {"selector": {"matchLabels": {"b": "c"}}, "template": {"metadata": {"labels": {"b": "c"}}}}},
        "annotation": {"metadata": {"annotations": {"a": "b"}}},
    }),
    "config-map-update": ({**CONFIG, "immutable": True}, {"data": {"data": {"a": "c"}}, "mutable": {"immutable": False}, "label": {"metadata": {"labels": {"a": "b"}}}}),
    "secret-update": (SECRET, {"type": {"type": "example.com/x"}, "data": {"stringData": {"b": "c"}}}),
    "job-update": (laid(JOB, {"spec": {"suspend": True}}), {
        "parallelism": {"spec": {"parallelism": 2}},
        "completions": {"spec": {"completions": 2}},
        "selector": {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
    }),
    "service-update": (SERVICE, {"port": {"spec": {"ports": [{"port": 81}]}}, "ip": {"spec": {"clusterIP": "10.96.1.7", "clusterIPs": ["10.96.1.7"]}}, "headless": {"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}}),
    "role-binding-update": (BINDING, {"role": {"roleRef": {"name": "edit"}}}),
    "claim-update": (CLAIM, {"size": {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, "label": {"metadata": {"labels": {"a": "b"}}}}),
    "quota-update": (QUOTA, {"hard": {"spec": {"hard": {"pods": "5"}}}, "scopes": {"spec": {"scopes": ["BestEffort"], "hard": {f"requests.{GPU}": None}}}}),
    "stateful-set-update": (workload("StatefulSet", serviceName="s", replicas=0), {"replicas": {"spec": {"replicas": 1}}, "service": {"spec": {"serviceName": "t"}}}),
}  # fmt: skip


def rows() -> list[Row]:
    found = rows_of(CREATES, UPDATES)
    limited = {
        "default": {}, "too-many": resources({GPU: 4}), "too-small": resources({"cpu": "50m"}),
        "fits": resources({GPU: 2, "cpu": "1"}),
    }  # fmt: skip
    found += [Row(f"limited/{name}", laid(POD, over), namespace="limited") for name, over in limited.items()]
    quotas = {
        "unstated": {}, "gpus": resources({GPU: 3, "cpu": "1"}), "cpu": resources({"cpu": "5"}),
        "fits": resources({GPU: 1, "cpu": "1"}),
    }  # fmt: skip
    found += [Row(f"quota/{name}", laid(POD, over), namespace="quota") for name, over in quotas.items()]
    return found


# What is empty and was sent: (object, field sets of its writer).
OWNED: dict[str, tuple[Object, list[Object]]] = {
    "limits": (kind("v1", "LimitRange", {"limits": []}), [{"f:spec": {"f:limits": {}}}]),
    "rules": (kind("rbac.authorization.k8s.io/v1", "Role", rules=[]), [{"f:rules": {}}]),
    "no-rules": (kind("rbac.authorization.k8s.io/v1", "Role"), []),
    "data": (kind("v1", "ConfigMap", data={}, binaryData={}), []),
    "labels": (kind("v1", "ConfigMap", metadata={"name": "x", "labels": {}, "finalizers": []}), []),
    "secret": (kind("v1", "Secret", data={}, stringData={}), [{"f:type": {}}]),
    "quota": (kind("v1", "ResourceQuota", {"hard": {}, "scopes": []}), []),
    "policy": (kind("networking.k8s.io/v1", "NetworkPolicy", {"podSelector": {}, "ingress": [], "policyTypes": []}), [{"f:spec": {"f:policyTypes": {}}}]),
    "revision": (kind("apps/v1", "ControllerRevision", revision=1, data={}), [{"f:data": {}, "f:revision": {}}]),
}  # fmt: skip

# What stands in the namespaces of the last rows.
STANDING: dict[str, list[Object]] = {
    "plain": [],
    "limited": [laid(LIMITS, {"spec": {"limits": [{"type": "Container", "max": {GPU: "2"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "200m"}, "min": {"cpu": "100m"}}]}})],
    "quota": [laid(QUOTA, {"spec": {"hard": {"=": {f"requests.{GPU}": "2", "limits.cpu": "4"}}}})],
}  # fmt: skip
