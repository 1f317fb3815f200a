"""What Prometheus and Grafana get: ports by both names, labels, rights only where they are asked for, rules as wanted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.monitoring.rules import adjusted
from kgpu.monitoring.scrape import Scrape, read_scrape
from kgpu.operator.model import Monitoring, Object, ObservedCluster
from tests.operator.objects.scenes import HOST_DRIVER, MONITORING, OPERANDS, SETTINGS, Case, policy

EXPORTER = "nvidia-dcgm-exporter"
WITH_KINDS = ObservedCluster(kinds=MONITORING)


def made(
    told: str = "", settings: Any = SETTINGS, observed: ObservedCluster = WITH_KINDS
) -> dict[tuple[str, str], Object]:
    spec = f"{HOST_DRIVER}\ndcgmExporter: {{{told}}}"
    found = Case(policy=policy(spec), settings=settings, observed=observed).rendered()
    assert not found.errors
    return {(one["kind"], one["metadata"]["name"]): one for one in found.objects}


def told(**changes: Any) -> Any:
    return dataclasses.replace(SETTINGS, monitoring=Monitoring(**changes))


def test_a54_t07_the_services_port_has_both_names() -> None:
    for settings, pods in ((SETTINGS, "kgpu-agent"), (OPERANDS, EXPORTER)):
        service = made(settings=settings)["Service", EXPORTER]
        assert service["spec"]["selector"] == {"app": pods}
        assert service["metadata"]["labels"]["app"] == EXPORTER
        ports = {port["name"]: (port["port"], port["targetPort"]) for port in service["spec"]["ports"]}
        assert ports == {"gpu-metrics": (9400, 9400), "metrics": (9401, 9400)}


@pytest.mark.parametrize(
    ("listen", "port"), [(":9500", 9500), ("0.0.0.0:80", 80), ("nonsense", 9400), (":0", 9400), (":99999", 9400)]
)
def test_the_service_follows_where_the_exporter_listens(listen: str, port: int) -> None:
    env = f"env: [{{name: DCGM_EXPORTER_LISTEN, value: '{listen}'}}]"
    service = made(f"{env}, service: {{type: NodePort, internalTrafficPolicy: Local}}")["Service", EXPORTER]
    assert {one["targetPort"] for one in service["spec"]["ports"]} == {port}
    assert (service["spec"]["type"], service["spec"]["internalTrafficPolicy"]) == ("NodePort", "Local")


def test_b103_a_service_monitor_only_where_it_is_asked_for_and_can_be() -> None:
    on = "serviceMonitor: {enabled: true, interval: 15s, additionalLabels: {release: kube-prometheus}}"
    assert ("ServiceMonitor", EXPORTER) not in made()
    assert ("ServiceMonitor", EXPORTER) not in made(on, observed=ObservedCluster())
    monitor = made(on)["ServiceMonitor", EXPORTER]
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["interval"]) == ("gpu-metrics", "15s")


def test_a_service_monitors_own_steps_come_last() -> None:
    mine = {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "mine"}
    on = (
        "serviceMonitor: {enabled: true, honorLabels: true, relabelings: "
        "[{action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: mine}]}"
    )
    (endpoint,) = made(on)["ServiceMonitor", EXPORTER]["spec"]["endpoints"]
    assert endpoint["relabelings"][0]["action"] == "keep"  # only where the role runs
    assert endpoint["relabelings"][-1].items() <= mine.items()
    assert {"action": "labeldrop", "regex": "pod|namespace|container"} in endpoint["relabelings"]
    assert "metricRelabelings" not in endpoint


def test_an_exporter_with_the_oldest_names_says_hostname_itself() -> None:
    def targets(more: str) -> set[str]:
        (endpoint,) = made(f"serviceMonitor: {{enabled: true}}{more}")["ServiceMonitor", EXPORTER]["spec"]["endpoints"]
        return {step["targetLabel"] for step in endpoint["relabelings"] if "targetLabel" in step}

    assert targets("") == {"node", "kubernetes_node", "Hostname"}
    assert targets(", env: [{name: KGPU_EXPORTER_COMPAT, value: 'a,b'}]") == {"node", "kubernetes_node"}


@pytest.mark.parametrize(("settings", "account"), [(SETTINGS, "kgpu-agent"), (OPERANDS, EXPORTER)])
def test_pods_may_be_read_only_where_their_labels_are_asked_for(settings: Any, account: str) -> None:
    name = f"{EXPORTER}-read-pods"
    assert ("ClusterRole", name) not in made(settings=settings)
    for asked in ("enablePodLabels: true", "enablePodUID: true"):
        found = made(asked, settings)
        assert found["ClusterRole", name]["rules"][0]["resources"] == ["pods"]
        (subject,) = found["ClusterRoleBinding", name]["subjects"]
        assert subject["name"] == account


def test_claims_may_be_read_only_where_they_are_asked_for() -> None:
    found = made("env: [{name: KUBERNETES_ENABLE_DRA, value: 'true'}]")
    (rule,) = found["ClusterRole", f"{EXPORTER}-read-pods"]["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["resource.k8s.io"], ["resourceslices"])


def config(told: str) -> dict[str, str]:
    """The exporter's variables."""
    found = made(told)["ConfigMap", "kgpu-agent"]["data"]["agent.json"]
    env: dict[str, str] = json.loads(found)["roles"]["exporter"]["env"]
    return env


def test_b49_counters_come_from_the_config_map() -> None:
    assert config("config: {name: dcgm-metrics}")["DCGM_EXPORTER_CONFIGMAP_DATA"] == "gpu-operator:dcgm-metrics"
    assert "DCGM_EXPORTER_CONFIGMAP_DATA" not in config("config: {name: ''}")


def test_what_is_asked_for_of_pods_and_jobs() -> None:
    env = config("enablePodLabels: true, podLabelAllowlistRegex: [^app$, team], hpcJobMapping: {enabled: true}")
    assert env["DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"] == "true"
    assert env["DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"] == "^app$,team"
    assert env["DCGM_HPC_JOB_MAPPING_DIR"] == "/host/var/lib/dcgm-exporter/job-mapping"
    assert not {name for name in config("") if "POD_LABEL" in name or "HPC" in name}


def test_rules_as_they_are_wanted() -> None:
    def alerts(settings: Any) -> set[str]:
        rule = made(settings=settings).get(("PrometheusRule", "kgpu-gpu-alerts"))
        groups = rule["spec"]["groups"] if rule else ()
        return {one["alert"] for group in groups for one in group["rules"] if "alert" in one}

    usual = alerts(SETTINGS)
    assert {"GPUHighTemperature", "GPUUnhealthy", "GPUExporterDown"} <= usual
    assert alerts(told(alerts=adjusted({"GPUIdle": {"enabled": False}}))) == usual - {"GPUIdle"}
    assert not alerts(told(rules=False))
    assert ("PrometheusRule", "kgpu-gpu-alerts") not in made(observed=ObservedCluster())


def test_dashboards_only_where_they_are_wanted() -> None:
    def boards(settings: Any) -> dict[str, Object]:
        return {name: one for (_, name), one in made(settings=settings).items() if name.startswith("kgpu-dashboard")}

    assert not boards(SETTINGS)
    found = boards(told(dashboards=True, annotations={"grafana_folder": "GPU"}))
    assert set(found) == {"kgpu-dashboard-gpu-cluster-overview", "kgpu-dashboard-gpu-devices"}
    for one in found.values():
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"]["grafana_folder"] == "GPU"


def test_health_is_the_operators_setting() -> None:
    def role(**changes: Any) -> dict[str, Any]:
        found = made(settings=dataclasses.replace(SETTINGS, **changes))["ConfigMap", "kgpu-agent"]["data"]["agent.json"]
        health: dict[str, Any] = json.loads(found)["roles"]["health"]
        return health

    assert role(health=False)["enabled"] is False
    assert role(health_config="ignore: {}")["env"] == {"KGPU_HEALTH_CONFIG": "ignore: {}"}


SECURE: dict[str, Any] = {
    "tlsConfig": {
        "ca": {"secret": {"name": "exporter-tls", "key": "ca.crt"}},
        "cert": {"configMap": {"name": "client", "key": "tls.crt"}},
        "keySecret": {"name": "client", "key": "tls.key"},
        "serverName": "exporter",
    },
    "basicAuth": {"username": {"name": "login", "key": "user"}, "password": {"name": "login", "key": "word"}},
}


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_a_scrape_with_tls_and_password(kind: str) -> None:
    wanted = told(scrape=read_scrape({"kind": kind, "scheme": "", **SECURE}))
    found = made("serviceMonitor: {enabled: true, interval: 15s}", settings=wanted)
    spec = found[kind, EXPORTER]["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert (endpoint["scheme"], endpoint["interval"], endpoint["path"]) == ("https", "15s", "/metrics")
    assert {key: endpoint[key] for key in SECURE} == SECURE
    assert ({"ServiceMonitor", "PodMonitor"} - {kind}).isdisjoint(one for one, name in found if name == EXPORTER)


@pytest.mark.parametrize(("settings", "pods"), [(SETTINGS, "kgpu-agent"), (OPERANDS, EXPORTER)])
def test_a_pod_monitor_finds_the_pods_and_is_the_same_job(settings: Any, pods: str) -> None:
    settings = dataclasses.replace(settings, monitoring=Monitoring(scrape=Scrape(kind="PodMonitor")))
    rendered = made("serviceMonitor: {enabled: true}", settings=settings)
    spec = rendered["PodMonitor", EXPORTER]["spec"]
    assert spec["selector"] == {"matchLabels": {"app": pods}}
    assert "jobLabel" not in spec
    (endpoint,) = spec["podMetricsEndpoints"]
    steps = endpoint["relabelings"]
    assert {"action": "replace", "targetLabel": "job", "replacement": EXPORTER} in steps
    assert {"node", "kubernetes_node", "Hostname"} <= {step.get("targetLabel") for step in steps}
    containers = [
        container
        for (kind, _), one in rendered.items()
        if kind == "DaemonSet" and one["metadata"]["labels"].get("app", pods) == pods
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    ports = {port["name"]: port["containerPort"] for one in containers for port in one.get("ports", ())}
    assert ports[endpoint["port"]] == 9400


def test_a_pod_monitor_follows_where_the_exporter_listens() -> None:
    wanted = told(scrape=Scrape(kind="PodMonitor"))
    on = "serviceMonitor: {enabled: true}, env: [{name: DCGM_EXPORTER_LISTEN, value: ':9500'}]"
    (endpoint,) = made(on, settings=wanted)["PodMonitor", EXPORTER]["spec"]["podMetricsEndpoints"]
    (step,) = [one for one in endpoint["relabelings"] if one.get("targetLabel") == "__address__"]
    assert (step["regex"], step["replacement"]) == (r"(.+):\d+", "$1:9500")


def test_without_the_kind_there_is_no_pod_monitor() -> None:
    only = ObservedCluster(kinds=frozenset({"servicemonitors.monitoring.coreos.com"}))
    found = made("serviceMonitor: {enabled: true}", settings=told(scrape=Scrape(kind="PodMonitor")), observed=only)
    assert not {kind for kind, name in found if name == EXPORTER} & {"PodMonitor", "ServiceMonitor"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "Probe"}, "scrape.kind"),
        ({"tls": {}, "scheem": "https"}, "scheem"),
        ({"scheme": "http", "tlsConfig": {"insecureSkipVerify": True}}, "scheme http"),
        ({"tlsConfig": {"insecureSkipVerify": "yes"}}, "insecureSkipVerify"),
        ({"tlsConfig": {"ca": {"secret": {"name": "a", "key": "b"}, "configMap": {"name": "a", "key": "b"}}}}, "ca"),
        ({"tlsConfig": {"keySecret": {"name": "a"}}}, "no key"),
        ({"basicAuth": {"username": {"name": "a", "key": "b"}}}, "password"),
        ({"basicAuth": "admin:secret"}, "basicAuth"),
    ],
)
def test_a_wrong_scrape_is_told(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_scrape(wrong)


def test_nothing_said_is_a_service_monitor_in_plain_http() -> None:
    assert read_scrape({"kind": "ServiceMonitor", "scheme": "", "tlsConfig": {}, "basicAuth": None}) == Scrape()
    assert read_scrape({"scheme": "http"}) == Scrape()


def test_usage_is_asked_for_with_the_labels_of_holders() -> None:
    spec = "operator: {metrics: {serviceMonitor: {enabled: true, additionalLabels: {release: prom}}}}"
    settings = dataclasses.replace(SETTINGS, usage=True)
    objects = (
        Case(policy=policy(spec), settings=settings, observed=ObservedCluster(kinds=MONITORING)).rendered().objects
    )
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    for name, app in (("kgpu-gpu-usage", "kgpu-agent"), ("kgpu-usage", "kgpu-usage")):
        service, monitor = found["Service", name], found["ServiceMonitor", name]
        assert service["spec"]["selector"] == {"app": app}
        assert service["metadata"]["labels"]["app"] == name
        assert monitor["spec"]["selector"] == {"matchLabels": {"app": name}}
        assert monitor["metadata"]["labels"]["release"] == "prom"
        (endpoint,) = monitor["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["honorLabels"]) == ("usage", True)
        assert {"action": "labeldrop", "regex": "namespace|pod|container"} in endpoint["relabelings"]
    off = Case(policy=policy("operator: {}"), settings=settings, observed=ObservedCluster(kinds=MONITORING))
    assert not [
        one for one in off.rendered().objects if one["kind"] == "ServiceMonitor" and "usage" in one["metadata"]["name"]
    ]
