"""The rules: names and thresholds that documents promise, what people may change, and every alert by promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats import yaml
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.catalogue import LAST_XID, guidance
from kgpu.monitoring.alerts import ALERTS, HARMLESS_XIDS
from kgpu.monitoring.rules import adjusted, groups, prometheus_rule

BY_NAME = {alert.name: alert for alert in ALERTS}

# Name, metric, the documents' comparison as a regular expression, for, severity.
XID = r"DCGM_FI_DEV_XID_ERRORS\{[^}]*\} != 0\b"
OF_DOCUMENTS = (
    ("GPUHighTemperature", "DCGM_FI_DEV_GPU_TEMP", r"> 85$", "5m", "warning"),
    ("GPUMemoryNearFull", "DCGM_FI_DEV_FB_USED", r"> 0\.95$", "10m", "warning"),
    ("GPUMemoryAlmostFull", "DCGM_FI_DEV_FB_USED", r"> 0\.95$", "5m", "critical"),
    ("GPUXidError", "XID_ERRORS", XID, "1m", "critical"),
    ("GPUUnderutilized", "DCGM_FI_DEV_GPU_UTIL", r"< 10$", "30m", "info"),
    ("GPUHighUtilization", "DCGM_FI_DEV_GPU_UTIL", r"> 95$", "30m", "info"),
    ("GPUIdle", "DCGM_FI_DEV_GPU_UTIL", r"< 5$", "1h", "warning"),
    ("GPUNodeIdle", "DCGM_FI_DEV_GPU_UTIL", r"< 5$", "30m", "warning"),
    ("GPUFallenOffBus", "XID_ERRORS", XID, "0m", "critical"),
    ("GPUNodeUnderutilized", "DCGM_FI_DEV_GPU_UTIL", r"< 30$", "30m", "info"),
)


@pytest.mark.parametrize(("name", "metric", "compared", "lasting", "severity"), OF_DOCUMENTS)
def test_b60_to_b66_d63_e15_alerts_of_documents(
    name: str, metric: str, compared: str, lasting: str, severity: str
) -> None:
    rule = BY_NAME[name].rule()
    assert metric in rule["expr"]
    assert re.search(compared, rule["expr"])
    assert (rule["for"], rule["labels"]["severity"]) == (lasting, severity)


def test_xids_after_which_a_gpu_works_on_are_the_catalogues() -> None:
    mild = {Action.IGNORE, Action.RESTART_APP}
    assert tuple(code for code in range(1, LAST_XID + 1) if guidance(code).action in mild) == HARMLESS_XIDS


def test_names_are_there_once() -> None:
    assert len(BY_NAME) == len(ALERTS)


def test_what_a_person_changes() -> None:
    told: dict[str, Any] = {"GPUIdle": {"threshold": 7, "for": "2h", "severity": "page"}, "GPULost": {"enabled": False}}
    found = {alert.name: alert.rule() for alert in adjusted(told)}
    assert "GPULost" not in found
    idle = found["GPUIdle"]
    assert idle["expr"].endswith("< 7")
    assert (idle["for"], idle["labels"]) == ("2h", {"severity": "page"})
    assert "for 2h" in idle["annotations"]["summary"]
    assert found["GPUNodeIdle"] == BY_NAME["GPUNodeIdle"].rule()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"GPUIdel": {}}, 'did you mean "GPUIdle"'),
        ({"GPUIdle": 5}, "alerts.GPUIdle is '5'"),
        ({"GPUIdle": {"Threshold": 5}}, 'did you mean "threshold"'),
        ({"GPUIdle": {"threshold": "5"}}, "a number such as 5"),
        ({"GPUIdle": {"threshold": True}}, "a number such as 5"),
        ({"GPUIdle": {"threshold": float("nan")}}, "a number such as 5"),
        ({"GPULost": {"threshold": 5}}, "no threshold"),
        ({"GPUIdle": {"for": "1 hour"}}, "a duration such as 1h"),
        ({"GPUIdle": {"for": ""}}, "a duration such as 1h"),
        ({"GPUIdle": {"severity": "a b"}}, "a word such as warning"),
        ({"GPUIdle": {"enabled": "no"}}, "true or false"),
    ],
)
def test_what_is_wrong_is_named(told: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adjusted(told)
    assert says in str(caught.value)


def test_an_object_of_the_prometheus_operator() -> None:
    made = prometheus_rule(adjusted({}), namespace="monitoring", labels={"release": "kube-prometheus"})
    assert made["metadata"]["labels"] == {"release": "kube-prometheus"}
    assert {rule["alert"] for group in made["spec"]["groups"] for rule in group["rules"] if "alert" in rule} == set(
        BY_NAME
    )


@dataclass(frozen=True)
class Story:
    """Series by their text, and what fires at ``at``; labels are those that matter. ``fires`` False: nothing does."""

    alert: str
    series: dict[str, str]
    at: str
    labels: dict[str, str] = field(default_factory=dict)
    fires: bool = True


GPU = 'gpu="0",UUID="GPU-a",node="n1",hostname="n1",instance="i"'
OF_GPU = {"gpu": "0", "UUID": "GPU-a", "node": "n1", "hostname": "n1"}
HERE = {**OF_GPU, "instance": "i"}
NODE = {"node": "n1", "hostname": "n1"}


def gpu(name: str, values: str, more: str = "") -> dict[str, str]:
    return {f"{name}{{{GPU}{',' if more else ''}{more}}}": values}


OPERATION = {"node": "n1", "operation": "m", "type": "Maintenance"}


def operation(metric: str, values: str, more: str = "") -> dict[str, str]:
    """As both replicas of the operator tell it: it is one alert."""
    about = ",".join([*(f'{key}="{value}"' for key, value in OPERATION.items()), *([more] if more else [])])
    return {f'kgpu_node_operation_{metric}{{{about},pod="{pod}"}}': values for pod in ("a", "b")}


def wasted(reason: str, values: str) -> dict[str, str]:
    return {f'kgpu_wasted_gpu_hours_total{{reason="{reason}",namespace="a"}}': values}


FULL = gpu("DCGM_FI_DEV_FB_USED", "97x120") | gpu("DCGM_FI_DEV_FB_FREE", "3x120")
UTIL = "DCGM_FI_DEV_GPU_UTIL"
XIDS = "DCGM_EXP_XID_ERRORS_COUNT"
STORIES = (
    Story("GPUHighTemperature", gpu("DCGM_FI_DEV_GPU_TEMP", "86x20"), "5m", HERE),
    Story("GPUHighTemperature", gpu("DCGM_FI_DEV_GPU_TEMP", "86x20"), "4m", fires=False),
    Story("GPUHighTemperature", gpu("DCGM_FI_DEV_GPU_TEMP", "85x20"), "10m", fires=False),
    Story("GPUHighTemperature", gpu("DCGM_FI_DEV_GPU_TEMP", "86x20", 'shared_copy="1"'), "10m", fires=False),
    Story("GPUMemoryNearFull", FULL, "10m", HERE),
    Story("GPUMemoryNearFull", FULL, "9m", fires=False),
    Story("GPUMemoryAlmostFull", FULL, "5m", HERE),
    Story("GPUHighUtilization", gpu(UTIL, "96x120"), "30m", HERE),
    Story("GPUUnderutilized", gpu(UTIL, "9x120"), "30m", HERE),
    Story("GPUIdle", gpu(UTIL, "4x120"), "1h", HERE),
    Story("GPUIdle", gpu(UTIL, "4x50 6 4x60"), "1h", fires=False),
    Story("GPUIdle", gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.01x120", 'GPU_I_ID="7"'), "1h",
          {**HERE, "GPU_I_ID": "7"}),
    Story("GPUHoursWasted", wasted("held-idle", "0+0.05x200") | wasted("hung", "0+0.05x200"), "185m", {"namespace": "a"}),
    Story("GPUHoursWasted", wasted("held-idle", "0+0.05x200") | wasted("hung", "0+0.05x200"), "115m", fires=False),
    Story("GPUHoursWasted", wasted("held-idle", "0+0.014x200"), "190m", fires=False),
    Story("GPUHoursWasted", wasted("free", "0+0.05x200") | wasted("down", "0+0.05x200"), "190m", fires=False),
    Story("GPUNodeIdle", gpu(UTIL, "4x120"), "30m", NODE),
    Story("GPUNodeIdle", gpu(UTIL, "4x120") | {f'{UTIL}{{gpu="1",node="n1",hostname="n1"}}': "50x120"}, "30m",
          fires=False),
    Story("GPUNodeUnderutilized", gpu(UTIL, "29x120"), "30m", NODE),
    Story("GPUXidError", gpu(XIDS, "1x20", 'xid="48"'), "1m", {**OF_GPU, "xid": "48"}),
    Story("GPUXidError", gpu(XIDS, "1x20", 'xid="13"'), "5m", fires=False),
    Story("GPUXidError", gpu(XIDS, "0x20") | gpu("DCGM_FI_DEV_XID_ERRORS", "48x20", 'err_code="48"'), "5m",
          fires=False),
    Story("GPUXidError", gpu("DCGM_FI_DEV_XID_ERRORS", "48x20", 'err_code="48"'), "1m", {**OF_GPU, "xid": "48"}),
    Story("GPUXidError", gpu("DCGM_FI_DEV_XID_ERRORS", "0x20", 'err_code="0"'), "5m", fires=False),
    Story("GPUXidOfProgram", gpu(XIDS, "1x20", 'xid="13"'), "1m", {**OF_GPU, "xid": "13"}),
    Story("GPUFallenOffBus", gpu(XIDS, "1x20", 'xid="79"'), "0m", {**OF_GPU, "xid": "79"}),
    Story("GPUFallenOffBus", gpu("DCGM_FI_DEV_XID_ERRORS", "79x20", 'err_code="79"'), "0m", {**OF_GPU, "xid": "79"}),
    Story("GPUNotAllocatable", {'kube_node_status_capacity{node="n1",resource="nvidia_com_gpu",unit="integer"}': "4x20",
                                'kube_node_status_allocatable{node="n1",resource="nvidia_com_gpu"}': "3x20"}, "5m",
          {"node": "n1", "resource": "nvidia_com_gpu"}),
    Story("GPUNotAllocatable", {'kube_node_status_capacity{node="n1",resource="cpu"}': "4x20",
                                'kube_node_status_allocatable{node="n1",resource="cpu"}': "3x20"}, "9m", fires=False),
    Story("GPUUnhealthy", gpu("kgpu_gpu_healthy", "0x20") |
          gpu("kgpu_gpu_verdict", "1x20", 'action="reset-gpu",reason="Xid48"'), "1m",
          {**HERE, "action": "reset-gpu", "reason": "Xid48"}),
    Story("GPUUnhealthy", gpu("kgpu_gpu_healthy", "1x20") |
          gpu("kgpu_gpu_verdict", "1x20", 'action="inspect",reason="Hot"'), "5m", fires=False),
    Story("GPUNeedsInspection", gpu("kgpu_gpu_verdict", "1x20", 'action="inspect",reason="Hot"'), "15m",
          {**HERE, "action": "inspect", "reason": "Hot"}),
    Story("GPULost", gpu("kgpu_gpu_up", "0x20"), "2m", HERE),
    Story("GPURowRemapFailure", gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1x20"), "1m", HERE),
    Story("GPUMemoryErrors", gpu("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "0x10 2x10"), "15m", HERE),
    Story("GPUMemoryErrors", gpu("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "2x20"), "15m", fires=False),
    Story("GPUMemoryHot", gpu("DCGM_FI_DEV_MEMORY_TEMP", "96x20"), "5m", HERE),
    Story("GPUPcieReplays", gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0+9x40"), "20m", HERE),
    Story("GPUPcieReplays", gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0+8x40"), "20m", fires=False),
    Story("GPUExporterDown", {'up{job="nvidia-dcgm-exporter",node="n1"}': "0x20"}, "5m",
          {"job": "nvidia-dcgm-exporter", "node": "n1"}),
    Story("GPUMetricsIncomplete",
          {'kgpu_exporter_field_errors_total{node="n1",hostname="n1",instance="i",field="F",reason="r"}': "0+1x40"},
          "20m", {**NODE, "instance": "i", "field": "F", "reason": "r"}),
    Story("GPUUsersUnknown", {'kgpu_exporter_users_unknown{node="n1",part="holdings",reason="gone"}': "1x20"}, "10m",
          {"node": "n1", "part": "holdings", "reason": "gone"}),
    Story("GPUDriverSilent", {'kgpu_exporter_driver_up{node="n1"}': "0x20"}, "5m", {"node": "n1"}),
    Story("GPUMetricsStale", {'kgpu_exporter_last_reading_timestamp_seconds{node="n1"}': "0x20"}, "5m", {"node": "n1"}),
    Story("GPUMetricsStale", {'kgpu_exporter_last_reading_timestamp_seconds{node="n1"}': "0+60x20"}, "9m",
          fires=False),
    Story("GPUCountersRefused", {'kgpu_exporter_counters_current{node="n1",source="s"}': "0x20"}, "10m",
          {"node": "n1", "source": "s"}),
    Story("GPUSeriesDropped", {'kgpu_exporter_series{node="n1",hostname="n1",state="dropped"}': "4x20"}, "5m",
          {**NODE, "state": "dropped"}),
    Story("GPUOperatorReconciliationFailed", {"gpu_operator_reconciliation_status": "0x120"}, "1h"),
    Story("GPUOperatorReconciliationFailed", {"gpu_operator_reconciliation_status": "0x30 1x90"}, "1h", fires=False),
    Story("GPUOperatorReconciliationFailedNfdLabelsMissing",
          {"gpu_operator_reconciliation_status": "0x120", "gpu_operator_reconciliation_has_nfd_labels": "0x120"}, "30m"),
    Story("GPUOperatorDriverAutoUpgradeFailures", {"gpu_operator_nodes_upgrades_failed": "2x120"}, "30m"),
    *(
        Story(f"GPUOperatorOpenshiftDriverToolkitEnabled{word}", {f"gpu_operator_openshift_driver_toolkit_{metric}": values},
              "31m", fires=fires)
        for word, metric in (
            ("NfdTooOld", "nfd_too_old"), ("ImageStreamMissing", "imagestream_missing"),
            ("ImageStreamBroken", "imagestream_broken"), ("ImageTagsMissing", "rhcos_tags_missing"),
        )
        for values, fires in (("1x120", True), ("0x120", False))
    ),
    Story("GPUNodeOperationStuck", operation("overdue_seconds", "0 301x20", 'phase="Restoring"'), "3m",
          {**OPERATION, "phase": "Restoring"}),
    Story("GPUNodeOperationStuck", operation("overdue_seconds", "300x20", 'phase="Draining"'), "9m", fires=False),
    Story("GPUNodeOperationFailed", operation("failed_timestamp_seconds", "60x2000", 'reason="NotWell"'), "23h",
          {**OPERATION, "reason": "NotWell"}),
    Story("GPUNodeOperationFailed", operation("failed_timestamp_seconds", "60x2000", 'reason="NotWell"'), "25h",
          fires=False),
    Story("GPUNodeHeldLong", operation("held_seconds", "86401x20"), "5m", OPERATION),
    Story("GPUNodeHeldLong", operation("held_seconds", "86400x20"), "9m", fires=False),
    Story("GPUNodeHeldLong", operation("held_seconds", "86401x20") |
          operation("overdue_seconds", "0x20", 'phase="Acting"'), "9m", fires=False),
    Story("GPUNodeHeldLong", operation("held_seconds", "86401x20") | operation("needs_replacement_seconds", "86000x20"),
          "9m", fires=False),
    Story("GPUNodeNeedsReplacement", operation("needs_replacement_seconds", "0x20"), "1m", OPERATION),
    Story("GPUNodeNeedsReplacement", operation("held_seconds", "0x20"), "9m", fires=False),
    Story("GPUNodeOperationUnapproved", operation("unapproved_seconds", "86401x20"), "5m", OPERATION),
    Story("GPUNodeOperationUnapproved", operation("unapproved_seconds", "86400x20"), "9m", fires=False),
    Story("GPURemediationStopped", {f'kgpu_remediation_stopped{{pod="{pod}"}}': "1x20" for pod in "ab"}, "1m"),
    Story("GPURemediationStopped", {"kgpu_remediation_stopped": "0x20"}, "9m", fires=False),
    *(
        Story(f"GPUOperatorNodeDeployment{word}Failed", {f'gpu_operator_node_{check}_ready{{node="n1"}}': "0x120"},
              "30m", {"node": "n1"})
        for word, check in (("", "plugin"), ("Driver", "driver"), ("Toolkit", "toolkit"), ("Cuda", "cuda"))
    ),
)  # fmt: skip


def every(story: Story) -> str:
    """How often rules are evaluated. For every rule each minute of a day it would be half a minute's work."""
    minutes = int(story.at[:-1]) * (60 if story.at.endswith("h") else 1)
    return "1m" if minutes <= 60 else "15m"


def as_promtool(stories: Iterable[Story], rules: Path, interval: str) -> dict[str, Any]:
    """A file for ``promtool test rules``: one test per story."""
    tests = []
    for story in stories:
        labels = {**story.labels, "severity": BY_NAME[story.alert].severity}
        # Of the annotations, whatever they are: they depend on values.
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in story.series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'ALERTS{{alertname="{story.alert}",alertstate="firing"}}',
                        "eval_time": story.at,
                        "exp_samples": [
                            {
                                "labels": f"ALERTS{{{_matchers(story.alert, labels)}}}",
                                "value": 1,
                            }
                        ]
                        if story.fires
                        else [],
                    }
                ],
            }
        )
    return {"rule_files": [str(rules)], "evaluation_interval": interval, "tests": tests}


def _matchers(alert: str, labels: dict[str, str]) -> str:
    found = {"alertname": alert, "alertstate": "firing", **labels}
    return ",".join(f'{name}="{value}"' for name, value in found.items())


def test_every_alert_has_a_story() -> None:
    assert {story.alert for story in STORIES if story.fires} == set(BY_NAME)


def test_promtool_takes_the_rules_and_every_alert_fires_when_it_should(prometheus_bin: Path, tmp_path: Path) -> None:
    rules, files = tmp_path / "rules.yaml", []
    rules.write_text(yaml.dump({"groups": groups(adjusted({}))}))
    for interval in sorted(set(map(every, STORIES))):
        files.append(tmp_path / f"every-{interval}.yaml")
        files[-1].write_text(
            yaml.dump(as_promtool((one for one in STORIES if every(one) == interval), rules, interval))
        )
    assert len(files) == 2
    for words in (("check", "rules", "--lint=all", "--lint-fatal", rules), ("test", "rules", *files)):
        done = subprocess.run([prometheus_bin / "promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
