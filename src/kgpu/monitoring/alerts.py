"""The alerts as rows: those that documents name, under their names, and kgpu's own.

Expressions count a device once: all series of a shared GPU but one have ``shared_copy``. ``node`` is a label that
kgpu's ServiceMonitor gives to every series; where something else scrapes, texts fall back to ``hostname``.
"""

from __future__ import annotations

from typing import Final

from kgpu.monitoring.model import Alert, RuleGroup

JOB: Final = "nvidia-dcgm-exporter"
"""The exporter's job where kgpu's ServiceMonitor scrapes it."""

HARMLESS_XIDS: Final = (
    8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63, 66, 67, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82,
    83, 84, 85, 86, 88, 89, 92, 93, 94, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 121, 126, 127, 128,
    129, 130, 131, 132, 133, 134, 135, 137, 139, 141, 152, 153, 157, 160, 161, 162,
)  # fmt: skip
"""Those for which NVIDIA's catalogue asks for nothing, or for the program to be restarted: the GPU itself works on."""

ONCE: Final = 'shared_copy=""'
_BY: Final = "node, hostname, gpu, UUID, GPU_I_ID"
_GPU: Final = (
    "GPU {{ $labels.gpu }}{{ with $labels.GPU_I_ID }} (MIG instance {{ . }}){{ end }} "
    "on {{ with $labels.node }}{{ . }}{{ else }}{{ $labels.hostname }}{{ end }}"
)
_NODE: Final = "{{ with $labels.node }}{{ . }}{{ else }}{{ $labels.hostname }}{{ end }}"
_POD: Final = "{{ with $labels.pod }} (pod {{ $labels.namespace }}/{{ . }}){{ end }}"
_LOOK: Final = "`kgpu health` on the node says what was found and what to do; `kgpu top` shows who uses the GPU"

# With MIG on the driver gives no utilisation; the engines' activity says the same.
USE: Final = f'(DCGM_FI_DEV_GPU_UTIL{{{ONCE}}} or 100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{ONCE},GPU_I_ID!=""}})'
MEMORY: Final = f"DCGM_FI_DEV_FB_USED{{{ONCE}}} / (DCGM_FI_DEV_FB_USED{{{ONCE}}} + DCGM_FI_DEV_FB_FREE{{{ONCE}}})"
WASTED_RATE: Final = "rate(kgpu_wasted_gpu_hours_total{}[1h]) * 3600"
"""GPUs, on average of the last hour; to be filled with matchers in braces, or nothing."""
_HELD_IDLE: Final = '{reason=~"held-.+|hung"}'
_CAPACITY: Final = 'kube_node_status_capacity{resource=~"(nvidia|amd)_com_.+|habana_ai_.+"}'
_OFF_THE_BUS: Final = (
    "Drain the node (kubectl drain --ignore-daemonsets --delete-emptydir-data), reboot it, and look whether the GPU is "
    "back; more than three times a month: replace it"
)
_HARMLESS: Final = "|".join(map(str, HARMLESS_XIDS))


def _xids(matcher: str) -> str:
    """Xids of the last minutes; where an exporter does not count them, the last one, which it shows for ever."""
    counted = f'DCGM_EXP_XID_ERRORS_COUNT{{{ONCE},xid!="",xid{matcher}}} > 0'
    last = f"DCGM_FI_DEV_XID_ERRORS{{{ONCE},err_code{matcher}}} != 0"
    named = f'label_replace({last}, "xid", "$1", "err_code", "(.*)")'
    return f"max by ({_BY}, xid) ({counted} or ({named} unless on (instance) DCGM_EXP_XID_ERRORS_COUNT))"


_ROW = tuple[str, str, float | None, str, str, str, str]


def _alerts(group: RuleGroup, *rows: _ROW) -> tuple[Alert, ...]:
    """Rows of name, expression, threshold, how long, severity, summary, what to do."""
    return tuple(
        Alert(name=name, group=group, expr=expr, threshold=threshold, lasting=lasting, severity=severity,
              summary=summary, remedy=remedy)
        for name, expr, threshold, lasting, severity, summary, remedy in rows
    )  # fmt: skip


OF_GPUS: Final = _alerts(
    RuleGroup.GPUS,
    ("GPUHighTemperature", f"DCGM_FI_DEV_GPU_TEMP{{{ONCE}}} > {{threshold}}", 85, "5m", "warning",
         f"{_GPU} is at {{{{ $value }}}} C", "Look at fans, airflow and the neighbours; it slows down next"),
    ("GPUMemoryNearFull", f"{MEMORY} > {{threshold}}", 0.95, "10m", "warning",
         f"Memory of {_GPU} is {{{{ $value | humanizePercentage }}}} full{_POD}",
         "The next allocation may fail; give the pod a larger GPU, a smaller batch, or nobody beside it"),
    ("GPUMemoryAlmostFull", f"{MEMORY} > {{threshold}}", 0.95, "5m", "critical",
         f"Memory of {_GPU} is {{{{ $value | humanizePercentage }}}} full{_POD}",
         "As GPUMemoryNearFull, sooner and louder; switch off the one of both that is not wanted"),
    ("GPUHighUtilization", f"{USE} > {{threshold}}", 95, "30m", "info",
         f"{_GPU} has been {{{{ $value | humanize }}}} % busy for {{for}}{_POD}",
         "Nothing is wrong; more GPUs would make this work faster"),
    ("GPUUnderutilized", f"{USE} < {{threshold}}", 10, "30m", "info",
         f"{_GPU} has been below {{threshold}} % utilization for {{for}}{_POD}",
         "See whether the pod needs a whole GPU: MIG or time-slicing may do"),
    ("GPUIdle", f"{USE} < {{threshold}}", 5, "1h", "warning",
         f"{_GPU} has done nothing for {{for}}{_POD}", "Free it, or let the node pool shrink"),
    ("GPUNodeIdle", f"max by (node, hostname) ({USE}) < {{threshold}}", 5, "30m", "warning",
         f"All GPUs of node {_NODE} have been idle for {{for}}", "Drain the node and give it back"),
    ("GPUNodeUnderutilized", f"avg by (node, hostname) ({USE}) < {{threshold}}", 30, "30m", "info",
         f"GPUs of node {_NODE} are {{{{ $value | humanize }}}} % busy on average", "Pack the work on fewer nodes"),
    ("GPUHoursWasted", f"sum by (namespace) ({WASTED_RATE.format(_HELD_IDLE)}) > {{threshold}}", 0.9, "2h", "info",
         "Namespace {{ $labels.namespace }} holds {{ $value | humanize }} GPUs that it has not used for hours",
         "`kgpu idle -n {{ $labels.namespace }}` says which, since when, at what cost; a GPUUsagePolicy tells people"),
    ("GPUXidError", _xids(f'!~"{_HARMLESS}"'), None, "1m", "critical", f"{_GPU} had Xid {{{{ $labels.xid }}}}",
         "`kgpu xid {{ $labels.xid }}` says what it means and what to do"),
    ("GPUXidOfProgram", _xids(f'=~"{_HARMLESS}"'), None, "1m", "info",
         f"{_GPU} had Xid {{{{ $labels.xid }}}}, after which the GPU itself works on",
         "`kgpu xid {{ $labels.xid }}` says what it means; mostly the program has an error"),
    ("GPUFallenOffBus", _xids('="79"'), None, "0m", "critical", f"{_GPU} has fallen off the bus (Xid 79)",
         _OFF_THE_BUS),
    ("GPUNotAllocatable",
         f"{_CAPACITY} - on (node, resource) kube_node_status_allocatable > {{threshold}}", 0, "5m", "warning",
         "{{ $value }} of node {{ $labels.node }}'s {{ $labels.resource }} can't be allocated",
         "The device plugin calls them unhealthy: kubectl describe node {{ $labels.node }} has its Events"),
)  # fmt: skip

OF_HEALTH: Final = _alerts(
    RuleGroup.HEALTH,
    ("GPUUnhealthy", "kgpu_gpu_verdict and on (instance, UUID) kgpu_gpu_healthy == 0", None, "1m",
         "critical", f"{_GPU} gets no new work: {{{{ $labels.reason }}}}", f"To do: {{{{ $labels.action }}}}. {_LOOK}"),
    ("GPUNeedsInspection", 'kgpu_gpu_verdict{action="inspect"} == 1', None, "15m", "warning",
         f"{_GPU} should be looked at: {{{{ $labels.reason }}}}", _LOOK),
    ("GPULost", "kgpu_gpu_up == 0", None, "2m", "critical", f"{_GPU} does not answer",
         f"The other GPUs of the node go on. {_LOOK}"),
    ("GPURowRemapFailure", f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{ONCE}}} > {{threshold}}", 0, "1m",
         "critical", f"A bad row of the memory of {_GPU} could not be replaced", "The GPU has to be replaced"),
    ("GPUMemoryErrors",
         f"increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{ONCE}}}[1h]) > {{threshold}}", 0, "0m", "warning",
         f"{{{{ $value | humanize }}}} rows of the memory of {_GPU} were replaced after uncorrectable errors",
         "The GPU has to be reset when its work has ended, so that the new rows are used"),
    ("GPUMemoryHot", f"DCGM_FI_DEV_MEMORY_TEMP{{{ONCE}}} > {{threshold}}", 95, "5m", "warning",
         f"The memory of {_GPU} is at {{{{ $value }}}} C", "Look at fans and airflow; it slows down next"),
    ("GPUPcieReplays", f"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{ONCE}}}[5m]) * 60 > {{threshold}}", 8,
         "10m", "warning", f"{_GPU} repeats {{{{ $value | humanize }}}} PCIe transfers a minute",
         "Look at riser, slot and cable"),
)  # fmt: skip

OF_EXPORTER: Final = _alerts(
    RuleGroup.EXPORTER,
    ("GPUExporterDown", f'up{{job="{JOB}"}} == 0', None, "5m", "warning",
         "There are no GPU metrics of {{ with $labels.node }}{{ . }}{{ else }}{{ $labels.instance }}{{ end }}",
         "`kgpu status` says which part of kgpu does not work on that node and why"),
    ("GPUMetricsIncomplete",
         "sum by (node, hostname, instance, field, reason) (rate(kgpu_exporter_field_errors_total[10m])) > {threshold}",
         0, "10m", "warning", f"{{{{ $labels.field }}}} can't be read on {_NODE}: {{{{ $labels.reason }}}}",
         "The driver refuses this value; take the field out of the counters file if it is not wanted"),
    ("GPUUsersUnknown", "kgpu_exporter_users_unknown == 1", None, "10m", "warning",
         f"Metrics of {_NODE} do not say who uses which GPU: {{{{ $labels.part }}}} is {{{{ $labels.reason }}}}",
         "The exporter's log says what was asked and what to do"),
    ("GPUDriverSilent", "kgpu_exporter_driver_up == 0", None, "5m", "critical",
         "The driver of {{ with $labels.node }}{{ . }}{{ else }}{{ $labels.instance }}{{ end }} does not answer",
         "`kgpu validate` on the node says why; a call that hangs in the driver needs a reboot"),
    ("GPUMetricsStale", "time() - kgpu_exporter_last_reading_timestamp_seconds > {threshold}", 180, "1m", "warning",
         f"Metrics of {_NODE} are {{{{ $value | humanizeDuration }}}} old", "The exporter's log says what it awaits"),
    ("GPUCountersRefused", "kgpu_exporter_counters_current == 0", None, "10m", "warning",
         f"The exporter on {_NODE} can't use {{{{ $labels.source }}}} and exports what was asked for before",
         "The exporter's log names the line; correct it, it is read again at once"),
    ("GPUSeriesDropped", 'kgpu_exporter_series{state="dropped"} > {threshold}', 0, "5m", "warning",
         f"The exporter on {_NODE} leaves {{{{ $value }}}} series out",
         "Its log names the label to blame; allow fewer pod labels, or raise --series-limit"),
)  # fmt: skip

_NOT_RECONCILED: Final = "gpu_operator_reconciliation_status != 1"
OF_OPERATOR: Final = _alerts(
    RuleGroup.OPERATOR,
    ("GPUOperatorReconciliationFailed", _NOT_RECONCILED, None, "1h", "warning",
         "The GPU operator could not bring the cluster into the wanted state for an hour",
         "kgpu status, or the conditions of the ClusterPolicy, say which operand on which node is not ready and why"),
    ("GPUOperatorReconciliationFailedNfdLabelsMissing",
         f"{_NOT_RECONCILED} and gpu_operator_reconciliation_has_nfd_labels == 0", None, "30m", "warning",
         "No node has feature labels, so that no GPU is found",
         "See that the chart's value nfd.enabled is true, or that node feature discovery works"),
    ("GPUOperatorDriverAutoUpgradeFailures", "gpu_operator_nodes_upgrades_failed > 0", None, "30m",
         "warning", "The driver upgrade has failed on {{ $value }} nodes",
         "`kgpu status` names the nodes with their causes. Mend these, or ask for another driver"),
)  # fmt: skip
_TOOLKIT: Final = "gpu_operator_openshift_driver_toolkit_{} == 1"
_TOLD: Final = "The ClusterPolicy's Events of reason DriverToolkitUnavailable name versions and nodes. "
OF_OPENSHIFT: Final = _alerts(
    RuleGroup.OPENSHIFT,
    *(
        (f"GPUOperatorOpenshiftDriverToolkitEnabled{word}", _TOOLKIT.format(metric), None, "30m", "warning", summary,
         _TOLD + remedy)
        for word, metric, summary, remedy in (
            ("NfdTooOld", "nfd_too_old", "Nodes with GPUs do not say which RHCOS they have, and get no driver",
             "Set the chart's value nfd.enabled, or update the node feature discovery"),
            ("ImageStreamMissing", "imagestream_missing",
             "There is no ImageStream driver-toolkit, so that drivers need a subscription of the cluster",
             "Update OpenShift, or put the ImageStream back into namespace openshift"),
            ("ImageStreamBroken", "imagestream_broken", "The ImageStream driver-toolkit has tags without a name",
             "Update OpenShift to a release that writes their names"),
            ("ImageTagsMissing", "rhcos_tags_missing",
             "The ImageStream driver-toolkit has no image for the RHCOS of nodes with GPUs",
             "Finish the update of OpenShift that these nodes are part of"),
        )
    ),
)  # fmt: skip
_READY: Final = "gpu_operator_node_{}_ready == 0"
OF_NODES: Final = _alerts(
    RuleGroup.NODES,
    *(
        (f"GPUOperatorNodeDeployment{word}Failed", _READY.format(check), None, "30m", "warning",
         f"GPUs of node {{{{ $labels.node }}}} are not usable: {summary}",
         "The condition kgpu.dev/Validated of the Node says what failed, what was expected and what to do")
        for word, check, summary in (
            ("", "plugin", "they are not offered to pods"),
            ("Driver", "driver", "the driver is not ready"),
            ("Toolkit", "toolkit", "the container toolkit is not ready"),
            ("Cuda", "cuda", "no CUDA program has run"),
        )
    ),
)  # fmt: skip

_OPERATION: Final = "{{ $labels.type }} {{ $labels.operation }} on node {{ $labels.node }}"
_SHOW: Final = "`kgpu operations show {{ $labels.operation }}`"


def _by_operation(metric: str, more: str = "") -> str:
    """One series per operation, whichever of the operator's replicas tells of it."""
    return f"max by (node, operation, type{more}) (kgpu_node_operation_{metric})"


_HELD: Final = _by_operation("held_seconds")
_OVERDUE: Final = _by_operation("overdue_seconds", ", phase")
_FAILED_AT: Final = _by_operation("failed_timestamp_seconds", ", reason")
_NEEDS_MACHINE: Final = _by_operation("needs_replacement_seconds")
_REPLACE: Final = (
    f"{_SHOW} says why, `kgpu operations bundle {{{{ $labels.operation }}}}` fetches what was known of the node. "
    "Replace the machine and delete its Node; or repair and boot it, and kgpu gives it back once all its GPUs work; or "
    "`kgpu operations resume {{ $labels.operation }}` gives it back as it is"
)
_STUCK: Final = (
    "Restoring: the node could not be given back and stays cordoned; any other phase: no operator leads, or its writes "
    f"are refused. {_SHOW} says how far it is, `kgpu status` whether an operator runs, and its log why it stays"
)
_AFTER_FAILURE: Final = (
    f"{_SHOW} says why and what was in its way; the node is no longer held. This ends once one succeeds there"
)
_APPROVE: Final = (
    f"{_SHOW} says what it is for, `kgpu operations plan {{{{ $labels.operation }}}}` which pods would go; "
    "`kgpu operations approve {{ $labels.operation }}` lets it begin, and `cancel` ends it"
)
_STOPPED: Final = (
    "`kubectl get configmap -A --field-selector metadata.name=kgpu-remediation -o yaml` says which nodes, and how to "
    "go on. GPUs are hardly the cause: look first for what these nodes share"
)
OF_OPERATIONS: Final = _alerts(
    RuleGroup.OPERATIONS,
    ("GPUNodeOperationStuck", f"{_OVERDUE} > {{threshold}}", 300, "1m", "critical",
         f"{_OPERATION} is {{{{ $labels.phase }}}} {{{{ $value | humanizeDuration }}}} longer than it may", _STUCK),
    ("GPUNodeOperationFailed", f"time() - {_FAILED_AT} < {{threshold}}", 86400, "0m", "warning",
         f"{_OPERATION} has failed: {{{{ $labels.reason }}}}", _AFTER_FAILURE),
    # What has an end of its own is stuck when that is over.
    ("GPUNodeHeldLong",
         f"{_HELD} > {{threshold}} unless on (node, operation) {_OVERDUE} unless on (node, operation) {_NEEDS_MACHINE}",
         86400, "5m", "warning",
         f"{_OPERATION} has held the node for {{{{ $value | humanizeDuration }}}}, and nothing ends it",
         "When the work on the node is done: `kgpu operations resume {{ $labels.operation }}`"),
    ("GPUNodeNeedsReplacement", f"{_NEEDS_MACHINE} >= 0", None, "0m", "warning",
         f"The machine of node {{{{ $labels.node }}}} has to be replaced: {_OPERATION} holds it, empty", _REPLACE),
    ("GPUNodeOperationUnapproved", f"{_by_operation('unapproved_seconds')} > {{threshold}}", 86400, "5m", "warning",
         f"{_OPERATION} has waited {{{{ $value | humanizeDuration }}}} for approval", _APPROVE),
    ("GPURemediationStopped", "max(kgpu_remediation_stopped) == 1", None, "0m", "critical",
         "So many nodes called for a repair at once that kgpu begins no more on its own", _STOPPED),
)  # fmt: skip

ALERTS: Final = (*OF_GPUS, *OF_HEALTH, *OF_EXPORTER, *OF_OPERATOR, *OF_OPENSHIFT, *OF_OPERATIONS, *OF_NODES)
