"""The chart with many sets of values: all that it makes are objects that Kubernetes and kgpu's own kinds admit."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from kgpu.base.connection_limits import HOST_IP
from kgpu.formats.crd import decode
from kgpu.formats.crd.definitions import crds
from kgpu.formats.names import AGENT_DAEMON_SET, AGENT_HEALTH_PORT, TAINT_UNSCHEDULABLE
from kgpu.formats.operands import OPERANDS
from kgpu.operator.vendors import TOLERATIONS
from tests.charts.conftest import CHART, NAMESPACE, Chart, Made, Object
from tests.charts.value_sets import FILES, SETS

KUBERNETES = ("1.28", "1.35")
OWN = {crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in crds()}
VALIDATORS = {kind: jsonschema.validators.validator_for(schema)(schema) for kind, schema in OWN.items()}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "ClusterPolicy", "NVIDIADriver"}


IN_DEFAULT = {"kgpu-events", "kgpu-operation-evidence"}
"""What is about Events of Nodes, which have no namespace."""


def check(made: Made) -> None:
    objects = made.objects
    seen = [(obj["kind"], obj["metadata"]["name"]) for obj in objects]
    assert len(set(seen)) == len(seen)
    for obj in objects:
        if obj["kind"] in OWN:
            VALIDATORS[obj["kind"]].validate(obj)
        else:
            for version in KUBERNETES:
                kubernetes_validate.validate(obj, version, strict=True)
        extra = not obj["metadata"].get("labels")
        place = "default" if obj["metadata"]["name"] in IN_DEFAULT else NAMESPACE
        assert extra or obj["kind"] in CLUSTER_WIDE or obj["metadata"]["namespace"] == place
    if made.has("ClusterPolicy"):
        decoded = decode.clusterpolicy(made.one("ClusterPolicy", "cluster-policy"))
        assert decoded.problem is None


@pytest.mark.parametrize("kind", OWN)
def test_the_schemas_of_kgpus_kinds_are_schemas(kind: str) -> None:
    """Once: it takes half a second."""
    VALIDATORS[kind].check_schema(OWN[kind])


@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_every_set_of_values(chart: Chart, sets: tuple[str, ...]) -> None:
    check(chart(*sets))


@pytest.mark.parametrize("values", FILES.values(), ids=FILES)
def test_every_values_file(chart: Chart, values: Object) -> None:
    check(chart(values=values))


def test_lint(helm: str) -> None:
    done = subprocess.run([helm, "lint", str(CHART), "--strict"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_finds_what_is_wrong(chart: Chart) -> None:
    bad = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "dada": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(chart(values={"extraObjects": [bad]}))


def pod_templates(made: Made) -> list[Any]:
    return [obj["spec"]["template"] for obj in made.objects if "template" in obj.get("spec", {})]


def test_no_pod_carries_the_charts_version(chart: Chart) -> None:
    for template in pod_templates(chart()):
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(template["metadata"]["labels"])


def test_pods_may_do_nothing_on_their_node(chart: Chart) -> None:
    """The chart's own pods fit into a namespace that enforces the restricted level."""
    templates = pod_templates(chart())
    assert len(templates) == 4
    for template in templates:
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in template["spec"]["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_one_image_everywhere(chart: Chart) -> None:
    made = chart(*SETS["own registry"])
    images = {container["image"] for pod in pod_templates(made) for container in pod["spec"]["containers"]}
    assert images == {"registry.local:5000/kgpu:1.2.3"}
    env = made.one("Deployment", "gpu-operator")["spec"]["template"]["spec"]["containers"][0]["env"]
    by_name = {entry["name"]: entry.get("value") for entry in env}
    assert by_name["OPERATOR_IMAGE"] == "registry.local:5000/kgpu:1.2.3"
    assert by_name["OPERATOR_IMAGE_PULL_SECRETS"] == "pull,other"
    for pod in pod_templates(made):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}, {"name": "other"}]


def test_a_digest_goes_before_the_tag(chart: Chart) -> None:
    made = chart(*SETS["by digest"], "image.tag=x")
    image = made.one("Deployment", "gpu-operator")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"kgpu.dev/kgpu@sha256:{'0' * 64}"


def test_hooks_run_when_they_should(chart: Chart) -> None:
    def hooks(made: Made) -> dict[str, str]:
        jobs = [obj for obj in made.objects if obj["kind"] == "Job"]
        return {job["metadata"]["name"]: job["metadata"]["annotations"]["helm.sh/hook"] for job in jobs}

    assert hooks(chart()) == {
        "gpu-operator-upgrade-crd": "pre-upgrade",
        "gpu-operator-cleanup": "pre-delete",
        "gpu-operator-cleanup-crd": "post-delete",
    }
    assert hooks(chart(*SETS["no hooks"])) == {}
    # What a hook runs as is there as long as the hook: objects of the release are gone after a deletion.
    without = chart("operator.cleanupCRD=false")
    assert without.one("ServiceAccount", "kgpu-crds")["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert not chart(*SETS["no hooks"]).has("ServiceAccount", "kgpu-crds")


def test_hooks_run_where_every_node_is_cordoned(chart: Chart) -> None:
    for made in (chart(), chart("operator.tolerations=null")):
        for job in (obj for obj in made.objects if obj["kind"] == "Job"):
            cordon, *others = job["spec"]["template"]["spec"]["tolerations"]
            assert cordon == {"key": TAINT_UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}
            assert [row["key"] for row in others] in ([], ["node-role.kubernetes.io/control-plane"])


def test_the_usual_taints_are_those_that_the_operator_bears_without_a_list(chart: Chart) -> None:
    assert chart().one("ClusterPolicy", "cluster-policy")["spec"]["daemonsets"]["tolerations"] == list(TOLERATIONS)


def test_the_operator_knows_its_nodes_address(chart: Chart) -> None:
    """So that the kubelet's probes have room of their own, however many connections others hold open."""
    (container,) = chart().one("Deployment", "gpu-operator")["spec"]["template"]["spec"]["containers"]
    (found,) = [one for one in container["env"] if one["name"] == HOST_IP]
    assert found["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}


def test_no_pod_reaches_the_ports_of_the_probes(chart: Chart) -> None:
    """And those of metrics only who is named; the node itself, whose kubelet probes, is no matter of a policy."""
    spec = chart("layout=operands").one("NetworkPolicy", "kgpu")["spec"]
    apps = set(spec["podSelector"]["matchExpressions"][0]["values"])
    pods = {one.daemon_set for one in OPERANDS if one.role} | {AGENT_DAEMON_SET, "gpu-operator"}
    assert apps == pods
    (rule,) = spec["ingress"]
    reached = {port for row in rule["ports"] for port in range(row["port"], row["endPort"] + 1)}
    assert set(range(1, 65536)) - reached == {8081, AGENT_HEALTH_PORT}
    assert "from" not in rule
    peer = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    narrow = chart(values={"networkPolicy": {"metricsFrom": [peer]}}).one("NetworkPolicy", "kgpu")["spec"]
    assert narrow["ingress"][0]["from"] == [peer]
    assert not chart("networkPolicy.enabled=false").has("NetworkPolicy")


def test_the_defaults_alone_ask_for_nothing_that_is_not_built(chart: Chart) -> None:
    found = decode.clusterpolicy(chart().one("ClusterPolicy", "cluster-policy"))
    assert (found.warnings, found.unbuilt) == ((), ())


def test_the_workers_config_of_the_replaced_chart_is_the_agents(chart: Chart) -> None:
    def told(*sets: str) -> str | None:
        pod = chart(*sets).one("Deployment", "gpu-operator")["spec"]["template"]["spec"]
        env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        return env.get("KGPU_FEATURES_CONFIG")

    worker = "node-feature-discovery.worker"
    assert told() is told(f"{worker}.tolerations[0].key=a") is told("node-feature-discovery=null") is None
    assert told(
        f"{worker}.config.sources.pci.deviceClassWhitelist={{02,0302}}", f"{worker}.config.core.sleepInterval=30s"
    ) == ('{"core":{"sleepInterval":"30s"},"sources":{"pci":{"deviceClassWhitelist":["02","0302"]}}}')
    refused = chart(f"{worker}.config=text")
    assert refused.code != 0
    assert "node-feature-discovery.worker.config is no mapping" in refused.error


def test_rules_of_node_features_and_what_they_may_give_are_values_of_the_replaced_chart(chart: Chart) -> None:
    def told(*sets: str) -> dict[str, str]:
        pod = chart(*sets).one("Deployment", "gpu-operator")["spec"]["template"]["spec"]
        env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        return {name: value for name, value in env.items() if name.startswith("KGPU_FEATURE_RULES")}

    config = "node-feature-discovery.master.config"
    assert told() == told(f"{config}.enableTaints=true") == {}
    assert told("nfd.nodefeaturerules=true") == {"KGPU_FEATURE_RULES": "true"}
    given = ("nfd.nodefeaturerules=true", f"{config}.enableTaints=true", f"{config}.klog.v=1")
    assert told(*given)["KGPU_FEATURE_RULES_CONFIG"] == '{"enableTaints":true}'
    master = ("node-feature-discovery.master.instance=blue", "node-feature-discovery.master.extraLabelNs[0]=a.org",
              "node-feature-discovery.featureGates.NodeFeatureGroupAPI=true",
              f"{config}.restrictions.allowOverwrite=false")  # fmt: skip
    assert json.loads(told("nfd.nodefeaturerules=true", *master)["KGPU_FEATURE_RULES_CONFIG"]) == {
        "instance": "blue", "extraLabelNs": ["a.org"], "featureGates": {"NodeFeatureGroupAPI": True},
        "restrictions": {"allowOverwrite": False},
    }  # fmt: skip
