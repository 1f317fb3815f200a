"""The chart's values for usage: off as it comes; the history is a Deployment of its own, which only lists pods."""

from __future__ import annotations

from tests.charts.conftest import Chart, Made


def _env(made: Made, kind: str, name: str) -> dict[str, str]:
    (container,) = made.one(kind, name)["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def test_a_price_list_is_named_and_may_be_read(chart: Chart) -> None:
    made = chart("usage.enabled=true", "usage.prices.configMap=kgpu-prices", "usage.prices.ofPolicies={contract}")
    assert _env(made, "Deployment", "kgpu-usage")["KGPU_PRICES_CONFIG_MAP"] == "kgpu-prices"
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["kgpu-prices", "contract"],
        "verbs": ["get"],
    }
    assert rule in made.one("Role", "kgpu-usage")["rules"]


def test_it_is_off_as_the_chart_comes(chart: Chart) -> None:
    made = chart()
    assert _env(made, "Deployment", "gpu-operator")["KGPU_USAGE"] == "false"
    assert not made.has("Deployment", "kgpu-usage")
    assert not made.has("ServiceAccount", "kgpu-usage")


def test_the_history_may_list_pods_and_no_more(chart: Chart) -> None:
    made = chart("usage.enabled=true", "usage.labels={team,app}")
    env = _env(made, "Deployment", "gpu-operator")
    assert (env["KGPU_USAGE"], env["KGPU_USAGE_LABELS"]) == ("true", "team,app")
    assert made.one("Role", "kgpu-usage")["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    assert not made.has("ClusterRole", "kgpu-usage")
    spec = made.one("Deployment", "kgpu-usage")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["template"]["spec"]["volumes"] == [{"name": "history", "emptyDir": {}}]


def test_agents_alone_count_without_a_history(chart: Chart) -> None:
    made = chart("usage.enabled=true", "usage.history.enabled=false")
    assert _env(made, "Deployment", "gpu-operator")["KGPU_USAGE"] == "true"
    assert not made.has("Deployment", "kgpu-usage")


def test_a_volume_is_kept_and_may_be_somebodys(chart: Chart) -> None:
    made = chart("usage.enabled=true", "usage.history.persistence.enabled=true", "usage.history.size=5Gi")
    claim = made.one("PersistentVolumeClaim", "kgpu-usage")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert _env(made, "Deployment", "kgpu-usage")["KGPU_USAGE_SIZE"] == "5Gi"
    words = ("usage.history.persistence.enabled=true", "usage.history.persistence.existingClaim=mine")
    other = chart("usage.enabled=true", *words)
    assert not other.has("PersistentVolumeClaim")


def test_the_history_reaches_the_agents_where_metrics_are_not_for_all(chart: Chart) -> None:
    made = chart("usage.enabled=true", values={"networkPolicy": {"metricsFrom": [{"podSelector": {}}]}})
    (rule,) = made.one("NetworkPolicy", "kgpu")["spec"]["ingress"]
    assert {"podSelector": {"matchLabels": {"app": "kgpu-usage"}}} in rule["from"]


def test_through_the_api_server_it_may_ask_pods_too(chart: Chart) -> None:
    made = chart("usage.enabled=true", "usage.history.throughApiServer=true")
    assert {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]} in made.one("Role", "kgpu-usage")["rules"]
    assert _env(made, "Deployment", "kgpu-usage")["KGPU_USAGE_THROUGH_API_SERVER"] == "true"
    assert "KGPU_USAGE_THROUGH_API_SERVER" not in _env(chart("usage.enabled=true"), "Deployment", "kgpu-usage")


def test_a_lab_can_give_each_of_its_pods_what_it_listens_on_and_writes_to(chart: Chart) -> None:
    """Pods of an embedded lab share this machine's network and files; it changes addresses and folders that are named."""
    (container,) = chart("usage.enabled=true").one("Deployment", "kgpu-usage")["spec"]["template"]["spec"]["containers"]
    named = {"--bind-address=:9410", "--health-probe-bind-address=:8081", "--state-dir=/var/lib/kgpu-usage"}
    assert named <= set(container["args"])
