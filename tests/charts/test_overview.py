"""The chart's values for the page: off as it comes; its account reads lists, asks whose tokens are, and no more."""

from __future__ import annotations

import subprocess
import sys

from tests.charts.conftest import Chart, Made, Object

KINDS = ("Deployment", "Service", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "NetworkPolicy")


def container(made: Made) -> Object:
    (found,) = made.one("Deployment", "kgpu-overview")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def env(made: Made) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(made)["env"]}


def test_it_is_off_as_the_chart_comes(chart: Chart) -> None:
    made = chart()
    assert not [kind for kind in KINDS if made.has(kind, "kgpu-overview")]
    assert "kgpu-overview" not in made.text


def test_its_account_lists_and_asks_whose_tokens_are(chart: Chart) -> None:
    made = chart("overview.enabled=true", "overview.doctor=false")
    rules = made.one("ClusterRole", "kgpu-overview")["rules"]
    found = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert found == {
        ("authentication.k8s.io", "tokenreviews", "create"), ("authorization.k8s.io", "subjectaccessreviews", "create"),
        ("", "nodes", "list"), ("", "pods", "list"), ("", "resourcequotas", "list"), ("nvidia.com", "clusterpolicies", "list"),
    }  # fmt: skip
    assert not made.has("Role", "kgpu-overview")
    assert not made.has("ClusterRoleBinding", "kgpu-overview-doctor")
    assert (env(made)["KGPU_OVERVIEW_DOCTOR"], env(made)["KGPU_OVERVIEW_IDLE"]) == ("false", "false")


def test_nothing_in_it_may_be_written_and_it_is_nobody(chart: Chart) -> None:
    made = chart("overview.enabled=true")
    spec = made.one("Deployment", "kgpu-overview")["spec"]
    pod = spec["template"]["spec"]
    assert (spec["replicas"], pod.get("volumes"), pod.get("hostNetwork")) == (1, None, None)
    assert (pod["securityContext"]["runAsNonRoot"], pod["serviceAccountName"]) == (True, "kgpu-overview")
    security = container(made)["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container(made)["resources"]["limits"]["memory"] == "1Gi"
    assert made.one("Service", "kgpu-overview")["spec"]["type"] == "ClusterIP"


def test_the_doctor_has_its_own_role_and_usage_the_agents(chart: Chart) -> None:
    made = chart("overview.enabled=true", "usage.enabled=true")
    assert made.one("ClusterRoleBinding", "kgpu-overview-doctor")["roleRef"]["name"] == "kgpu-doctor"
    assert (env(made)["KGPU_OVERVIEW_DOCTOR"], env(made)["KGPU_OVERVIEW_IDLE"]) == ("true", "true")
    (rule,) = made.one("Role", "kgpu-overview")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}


def test_on_openshift_it_may_run_as_its_user(chart: Chart) -> None:
    (rule,) = chart("overview.enabled=true", "platform.openshift=true").one("Role", "kgpu-overview")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["nonroot-v2"], ["use"])


def test_through_the_api_server_it_may_ask_pods(chart: Chart) -> None:
    made = chart("overview.enabled=true", "overview.throughApiServer=true")
    assert made.has("Role", "kgpu-overview")
    assert env(made)["KGPU_OVERVIEW_THROUGH_API_SERVER"] == "true"


def test_its_port_is_for_whom_one_says_and_the_exporters_are_for_it(chart: Chart) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "ingress"}}}]
    made = chart("overview.enabled=true", values={"networkPolicy": {"metricsFrom": peers}, "overview": {"from": peers}})
    (rule,) = made.one("NetworkPolicy", "kgpu-overview")["spec"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": 9420}], "from": peers}
    (metrics,) = made.one("NetworkPolicy", "kgpu")["spec"]["ingress"]
    assert {"podSelector": {"matchLabels": {"app": "kgpu-overview"}}} in metrics["from"]
    assert "from" not in chart("overview.enabled=true").one("NetworkPolicy", "kgpu-overview")["spec"]["ingress"][0]
    assert not chart("overview.enabled=true", "networkPolicy.enabled=false").has("NetworkPolicy")


def test_what_it_is_started_with_is_understood(chart: Chart) -> None:
    words = container(chart("overview.enabled=true"))["args"]
    flags = [word for word in words if word.startswith("--")]
    assert words[:2] == ["operator", "overview"]
    done = subprocess.run(
        [sys.executable, "-m", "kgpu", "operator", "overview", "--help"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert [flag for flag in flags if flag.partition("=")[0] not in done.stdout] == []


def test_values_of_an_older_release_are_enough(chart: Chart) -> None:
    """As with ``helm upgrade --reuse-values``: the section's defaults are not among them."""
    made = chart("overview.enabled=true", values={"overview": {"doctor": None, "resources": None, "from": None}})
    assert container(made)["resources"]["limits"]["memory"] == "1Gi"
    assert env(made)["KGPU_OVERVIEW_DOCTOR"] == "true"


def test_a_mistake_in_its_values_is_refused(chart: Chart) -> None:
    made = chart("overview.enabled=true", "overview.doctr=false")
    assert made.code != 0
    assert "doctr" in made.error
