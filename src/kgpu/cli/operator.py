"""``kgpu operator``: the process that turns a ClusterPolicy into a working fleet, and the clean-up after it.

Flags of the replaced operator keep their names, so that a Deployment's arguments go on working; zap's own are taken
and mapped where they mean something.
"""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.cli._common import ExampleCommand, ExampleGroup, check_kubeconfig, log_options, run_async
from kgpu.cli._options import help_with_variables, settled
from kgpu.cli._overview_host import OVERVIEW
from kgpu.formats.names import (
    ALLOCATION_DEVICE_PLUGIN,
    ENV_CLUSTER_NAME,
    ENV_FEATURE_RULES,
    ENV_FEATURE_RULES_CONFIG,
    ENV_FEATURES_CONFIG,
    ENV_HEALTH_CONFIG,
    ENV_OPERATIONS,
    ENV_OPERATIONS_CONFIG,
    ENV_PRICES,
    ENV_USAGE,
    ENV_USAGE_LABELS,
    ENV_WEBHOOK_SECRET,
    ENV_WEBHOOK_TOKEN,
    ENV_WEBHOOK_URL,
    USAGE_PORT,
)
from kgpu.formats.settings import FlagShape, Setting

if TYPE_CHECKING:
    from kgpu.base.http import Address
    from kgpu.discovery.master.model import MasterSettings
    from kgpu.manager.controller import LeaderController
    from kgpu.manager.run import Options
    from kgpu.notifications.notifier import Notifier
    from kgpu.notifications.settings import WebhookSettings
    from kgpu.operations.config import MigPolicy, OperationBudget, RemediationPolicy
    from kgpu.operations.writing import ActSettings
    from kgpu.operator.cleanup import Limits
    from kgpu.operator.model import Monitoring, OperatorSettings

EXAMPLES: Final = """
kgpu operator run --kubeconfig ~/.kube/config --namespace gpu-operator --image kgpu:dev
kgpu operator cleanup --namespace gpu-operator --timeout 5m
"""

COMMON: Final = (
    Setting(attr="kubeconfig", flag="--kubeconfig", envs=("KUBECONFIG",), metavar="FILE",
            help="How to reach the API server. Default: in-cluster."),
    Setting(attr="namespace", flag="--namespace", aliases=("-n",), envs=("OPERATOR_NAMESPACE",), metavar="NS",
            help="The operator's own namespace, where operands run. Needed."),
)  # fmt: skip
USAGE: Final = (
    *COMMON,
    Setting(attr="state_dir", flag="--state-dir", envs=("KGPU_USAGE_STATE_DIR",), default="/var/lib/kgpu-usage",
            metavar="DIR", help="Where the history is kept."),
    Setting(attr="size", flag="--size", envs=("KGPU_USAGE_SIZE",), default="2Gi", metavar="SIZE",
            help="The largest size of the history; the oldest lines go first."),
    Setting(attr="retention", flag="--retention", envs=("KGPU_USAGE_RETENTION",), default="400d", metavar="DAYS",
            help="How long lines are kept; after 14 days an hour's lines become one."),
    Setting(attr="address", flag="--bind-address", envs=("KGPU_USAGE_ADDRESS",), default=f":{USAGE_PORT}",
            metavar="HOST:PORT", help="Where the history and metrics are served."),
    Setting(attr="health_address", flag="--health-probe-bind-address", envs=("KGPU_USAGE_HEALTH_ADDRESS",),
            default=":8081", metavar="HOST:PORT", help="Where /healthz and /readyz are served; 0 for nowhere."),
    Setting(attr="through_api_server", flag="--through-api-server", envs=("KGPU_USAGE_THROUGH_API_SERVER",),
            default="false", metavar="BOOL",
            help="Whether agents are asked through the API server's pod proxy also from a pod, which asks at their "
                 "addresses otherwise. It needs the right to get pods/proxy."),
    Setting(attr="prices", flag="--prices-config-map", envs=(ENV_PRICES,), metavar="NAME",
            help="The ConfigMap in --namespace with the cluster's price list; a change counts within a minute."),
)  # fmt: skip
RUN: Final = (
    *COMMON,
    Setting(attr="image", flag="--image", envs=("OPERATOR_IMAGE",), metavar="IMAGE",
            help="kgpu's own image, for agents and operands. Needed."),
    Setting(attr="image_pull_policy", flag="--image-pull-policy", envs=("OPERATOR_IMAGE_PULL_POLICY",),
            default="IfNotPresent", metavar="POLICY", help="Always, IfNotPresent or Never, for kgpu's own image."),
    Setting(attr="image_pull_secrets", flag="--image-pull-secrets", envs=("OPERATOR_IMAGE_PULL_SECRETS",),
            metavar="LIST", help="Names of pull secrets for kgpu's own image, separated by commas."),
    Setting(attr="layout", flag="--layout", envs=("KGPU_LAYOUT",), default="agent", metavar="LAYOUT",
            help="agent or operands."),
    Setting(attr="vendors", flag="--vendors", envs=("KGPU_VENDORS",), default="nvidia,amd,gaudi", metavar="LIST",
            help="Whose accelerators are served: any of nvidia, amd, gaudi, intel, separated by commas."),
    Setting(attr="device_configs", flag="--device-configs", envs=("KGPU_DEVICE_CONFIGS",), default="false",
            metavar="BOOL", help="Whether AMD's DeviceConfigs of its namespace are followed."),
    Setting(attr="agent_nodes", flag="--agent-nodes", envs=("KGPU_AGENT_NODES",), default="gpu", metavar="WHERE",
            help="Where the privileged agent runs: gpu (where there is work for it) or all (every Linux node)."),
    Setting(attr="agent_selector", flag="--agent-node-selector", envs=("KGPU_AGENT_NODE_SELECTOR",), metavar="YAML",
            help="Labels that nodes must have beside that: {pool: gpu}. Nothing privileged runs on others."),
    Setting(attr="allocation", flag="--allocation", envs=("KGPU_ALLOCATION",), default=ALLOCATION_DEVICE_PLUGIN,
            metavar="HOW",
            help="How nodes without the label kgpu.dev/allocation hand out GPUs: device-plugin, or dra with --dra."),
    Setting(attr="dra", flag="--dra", envs=("KGPU_DRA",), default="false", metavar="BOOL",
            help="Whether nodes may hand out their GPUs by claims."),
    Setting(attr="dra_gates", flag="--dra-feature-gates", envs=("KGPU_DRA_FEATURE_GATES",), metavar="NAME=BOOL,...",
            help="Feature gates of the DRA driver, such as DynamicMIG=true."),
    Setting(attr="discovery", flag="--discovery", envs=("KGPU_DISCOVERY",), default="true", metavar="BOOL",
            help="Whether to find node features itself."),
    Setting(attr="other_discovery", flag="--other-discovery", envs=("KGPU_OTHER_DISCOVERY",), default="detect",
            metavar="HOW",
            help="Whether another node feature discovery works here: detect (its account may patch Nodes), present, "
            "ignore."),
    Setting(attr="feature_rules", flag="--feature-rules", envs=(ENV_FEATURE_RULES,), default="false", metavar="BOOL",
            help="Whether NodeFeatureRules are carried out; never beside another node feature discovery."),
    Setting(attr="feature_rules_config", flag="--feature-rules-config", envs=(ENV_FEATURE_RULES_CONFIG,),
            metavar="YAML",
            help="What they may give: {enableTaints: true}; also denyLabelNs, extraLabelNs, labelWhiteList, "
            "restrictions, instance, featureGates."),
    Setting(attr="features_config", flag="--features-config", envs=(ENV_FEATURES_CONFIG,), metavar="YAML",
            help="A worker's config of node feature discovery, for nodes that have no nfd-worker.conf of their own."),
    Setting(attr="other_operator", flag="--other-operator", envs=("KGPU_OTHER_OPERATOR",), default="detect",
            metavar="HOW",
            help="Hold still beside another GPU operator: detect (its account may write ClusterPolicies), ignore."),
    Setting(attr="health", flag="--health", envs=("KGPU_HEALTH",), default="true", metavar="BOOL",
            help="Whether to watch the GPUs' health."),
    Setting(attr="health_config", flag="--health-config", envs=(ENV_HEALTH_CONFIG,), metavar="YAML",
            help="Its configuration."),
    Setting(attr="operations", flag="--operations", envs=(ENV_OPERATIONS,), default="true", metavar="BOOL",
            help="Whether NodeOperations are carried out."),
    Setting(attr="operations_config", flag="--operations-config", envs=(ENV_OPERATIONS_CONFIG,), metavar="YAML",
            help="Their budget: {maxParallel: 1, maxUnavailable: 25%}; also groups, remediation."),
    Setting(attr="webhook_url", envs=(ENV_WEBHOOK_URL,),
            help="Where notifications about operations are posted; none without it. A secret, so it has no flag."),
    Setting(attr="webhook_token", envs=(ENV_WEBHOOK_TOKEN,), help="Its bearer token."),
    Setting(attr="webhook_secret", envs=(ENV_WEBHOOK_SECRET,),
            help="The name of the Secret that both come from, for messages."),
    Setting(attr="webhook_min_severity", flag="--webhook-min-severity", envs=("KGPU_WEBHOOK_MIN_SEVERITY",),
            default="info", metavar="WORD", help="The least severe notification that is posted: info or warning."),
    Setting(attr="webhook_format", flag="--webhook-format", envs=("KGPU_WEBHOOK_FORMAT",), default="CloudEvents",
            metavar="FORMAT", help="CloudEvents, or Text for chat programs that take a text alone."),
    Setting(attr="cluster_name", flag="--cluster-name", envs=(ENV_CLUSTER_NAME,), metavar="NAME",
            help="What notifications call this cluster."),
    Setting(attr="usage", flag="--usage", envs=(ENV_USAGE,), default="false", metavar="BOOL",
            help="Whether agents count what GPUs are used for, and by whom."),
    Setting(attr="usage_labels", flag="--usage-labels", envs=(ENV_USAGE_LABELS,), metavar="LIST",
            help="The keys of pods' labels that they record, separated by commas."),
    Setting(attr="host_facts", flag="--host-facts", envs=("KGPU_HOST_FACTS",), default="true", metavar="BOOL",
            help="Whether agents write into their logs what kgpu doctor wants to know of their nodes."),
    Setting(attr="alert_rules", flag="--alert-rules", envs=("KGPU_ALERT_RULES",), default="true", metavar="BOOL",
            help="Whether to make PrometheusRules, where there is that kind."),
    Setting(attr="alerts", flag="--alerts", envs=("KGPU_ALERTS",), metavar="YAML",
            help="What differs of alerts, by name: {GPUIdle: {enabled: false}}; also threshold, for, severity."),
    Setting(attr="scrape", flag="--scrape", envs=("KGPU_SCRAPE",), metavar="YAML",
            help="How Prometheus asks exporters: {kind: PodMonitor, scheme: https}; also tlsConfig, basicAuth."),
    Setting(attr="dashboards", flag="--dashboards", envs=("KGPU_DASHBOARDS",), default="false", metavar="BOOL",
            help="Whether to make ConfigMaps with Grafana dashboards."),
    Setting(attr="dashboard_labels", flag="--dashboard-labels", envs=("KGPU_DASHBOARD_LABELS",),
            default='grafana_dashboard: "1"', metavar="YAML", help="Labels of these."),
    Setting(attr="dashboard_annotations", flag="--dashboard-annotations", envs=("KGPU_DASHBOARD_ANNOTATIONS",),
            metavar="YAML", help="Annotations of these."),
    Setting(attr="metrics_address", flag="--metrics-bind-address", envs=("METRICS_BIND_ADDRESS",), default=":8080",
            metavar="HOST:PORT", help="Serve /metrics there; 0 for nowhere."),
    Setting(attr="health_address", flag="--health-probe-bind-address", envs=("HEALTH_PROBE_BIND_ADDRESS",),
            default=":8081", metavar="HOST:PORT", help="Serve /healthz, /readyz and /statusz there; 0 for nowhere."),
    Setting(attr="lease_namespace", flag="--leader-elect-namespace", envs=("LEADER_ELECT_NAMESPACE",), metavar="NS",
            help="Where the Lease is. Default: --namespace."),
    Setting(attr="renew_deadline", flag="--leader-lease-renew-deadline", envs=("LEADER_LEASE_RENEW_DEADLINE",),
            default="10s", metavar="DURATION", help="After how long without a renewal the leader stops to write."),
)  # fmt: skip
LEADER_ELECT: Final = Setting(
    attr="leader_elect", flag="--leader-elect", envs=("LEADER_ELECT",), default="true", shape=FlagShape.SWITCH,
    help="Write only while holding the Lease.",
)  # fmt: skip
# The replaced operator's logging flags. They say how its logger looks; --log-level and --log-format are kgpu's own.
ZAP: Final = (
    ("--zap-devel", "zap_devel"),
    ("--zap-log-level", "zap_level"),
    ("--zap-encoder", "zap_encoder"),
    ("--zap-time-encoding", "zap_time"),
    ("--zap-stacktrace-level", "zap_stack"),
)
# As Go's flag package reads them.
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


F = TypeVar("F", bound=Callable[..., Any])


def _zap_options(function: F) -> F:
    for flag, parameter in ZAP:
        shape: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if parameter == "zap_devel" else {}
        function = click.option(flag, parameter, hidden=True, default="", **shape)(function)
    return function


@click.group("operator", cls=ExampleGroup, examples=EXAMPLES)
def operator() -> None:
    """The operator: one ClusterPolicy becomes a working fleet."""


@operator.command("run", examples="kgpu operator run --namespace gpu-operator --image kgpu:dev")
@settled(RUN, text=help_with_variables)
@settled((LEADER_ELECT,))
@_zap_options
@log_options
def run(*, log_level: str, log_format: str, **flags: Any) -> None:
    """Watch the cluster, plan and apply, until SIGTERM.

    Images of operands come from the environment under the replaced operator's names (DRIVER_IMAGE, ...).
    """
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    settings, options = settings_of(flags, os.environ), options_of(flags, os.environ)
    config = operations_config_of(flags)
    budget, policy, webhook = budget_of(config, flags), remediation_of(config), webhook_of(flags)
    configure(level=_level(log_level, flags["zap_level"]), form=_form(log_format, flags["zap_encoder"]))
    acts, mig = acts_of(settings, config), mig_of(config)
    master = master_of(flags)
    run_async(
        _run(flags["kubeconfig"], settings, options, budget, policy, acts=acts, mig=mig, webhook=webhook, master=master)
    )


@operator.command("usage", cls=ExampleCommand, examples="kgpu operator usage -n gpu-operator --state-dir /state")
@settled(USAGE, text=help_with_variables)
@log_options
def usage(*, log_level: str, log_format: str, **flags: Any) -> None:
    """Keep the history of what the cluster's GPUs were used for, and serve it, until SIGTERM.

    It is a process beside the operator: it asks the agents every minute, and only reads pods of the API server.
    """
    from kgpu.base.log import configure

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    configure(level=log_level, form=log_format)
    run_async(_keep_usage(flags))


async def _keep_usage(options: Mapping[str, Any]) -> None:
    from pathlib import Path

    from kgpu.base.http import parse_address
    from kgpu.kube.client import connect
    from kgpu.manager.usage_host import UsageHostOptions, keep

    api = connect(options["kubeconfig"])
    try:
        await keep(
            api,
            UsageHostOptions(
                namespace=_needed(options, "namespace", "--namespace (OPERATOR_NAMESPACE)", "the operator's namespace"),
                folder=Path(options["state_dir"]),
                days=_days(options, "retention", "--retention or KGPU_USAGE_RETENTION"),
                max_bytes=_bytes(options, "size", "--size or KGPU_USAGE_SIZE"),
                pages=parse_address(options["address"], flag="--bind-address"),
                health=_address(options["health_address"], "--health-probe-bind-address"),
                prices=options["prices"],
                direct=bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
                and not _bool(options, "through_api_server", "--through-api-server or KGPU_USAGE_THROUGH_API_SERVER"),
            ),
        )
    finally:
        await api.close()


def _days(given: Mapping[str, Any], name: str, where: str) -> float:
    text = str(given[name])
    number = text.removesuffix("d")
    if not (text.endswith("d") and number.isascii() and number.isdecimal() and 1 <= int(number[:6]) <= 3660):
        raise ConfigError(f"{text!r:.40} is no time to keep history", "days, from 1d to 3660d", f"correct {where}")
    return float(number)


def _bytes(given: Mapping[str, Any], name: str, where: str) -> int:
    from kgpu.base.quantity import Quantity, QuantityError

    try:
        found = Quantity.parse(str(given[name])).value
    except QuantityError:
        found = 0
    if not 16 << 20 <= found <= 1 << 40:
        raise ConfigError(f"{given[name]!r:.40} is no size of a history", "from 16Mi to 1Ti", f"correct {where}")
    return found


@operator.command("overview", cls=ExampleCommand, examples="kgpu operator overview -n gpu-operator")
@settled((*COMMON, *OVERVIEW), text=help_with_variables)
@log_options
def overview(*, log_level: str, log_format: str, **flags: Any) -> None:
    """Serve the page of kgpu overview in the cluster, to whoever has a token that the API server takes, until SIGTERM.

    Each is shown what the API server lets him see. It only reads, and asks the API server whose tokens are.
    """
    from kgpu.base.http import parse_address
    from kgpu.base.log import configure
    from kgpu.cli._overview_host import host_overview

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    configure(level=log_level, form=log_format)
    run_async(
        host_overview(
            flags["kubeconfig"],
            _needed(flags, "namespace", "--namespace (OPERATOR_NAMESPACE)", "the operator's namespace"),
            address=parse_address(flags["address"], flag="--bind-address"),
            health=_address(flags["health_address"], "--health-probe-bind-address"),
            doctor=_bool(flags, "doctor", "--doctor or KGPU_OVERVIEW_DOCTOR"),
            idle=_bool(flags, "idle", "--idle or KGPU_OVERVIEW_IDLE"),
            proxied=_bool(flags, "through_api_server", "--through-api-server or KGPU_OVERVIEW_THROUGH_API_SERVER"),
        )
    )


@operator.command("cleanup", cls=ExampleCommand, examples="kgpu operator cleanup --namespace gpu-operator")
@settled(COMMON, text=help_with_variables)
@click.option("--timeout", default="2m", metavar="DURATION", show_default=True, help="Give up after that long.")
@click.option("--leave", default="20s", metavar="DURATION", show_default=True,
              help="How long agents may take to clean up their hosts.")  # fmt: skip
@log_options
def cleanup(*, log_level: str, log_format: str, **flags: Any) -> None:
    """Remove what the operator and its agents have put into the cluster: hosts' files, operands, labels, conditions.

    Works whether the operator runs or not; doing it again does no harm. ClusterPolicies and what users made stay.
    """
    from kgpu.base.log import configure
    from kgpu.operator.cleanup import Limits

    check_kubeconfig(click.get_current_context(), flags["kubeconfig"])
    namespace = _needed(flags, "namespace", "--namespace or OPERATOR_NAMESPACE", "the operator's own namespace")
    limits = Limits(whole=_seconds(flags, "timeout", "--timeout"), leave=_seconds(flags, "leave", "--leave"))
    configure(level=log_level, form=log_format)
    run_async(_clean_up(flags["kubeconfig"], namespace, limits))


async def _run(
    kubeconfig: str, settings: OperatorSettings, options: Options, budget: OperationBudget | None,
    policy: RemediationPolicy, *, acts: ActSettings, mig: MigPolicy, webhook: WebhookSettings | None = None,
    master: MasterSettings | None = None,
) -> None:  # fmt: skip
    import asyncio
    import signal

    from kgpu.base.backoff import Backoff
    from kgpu.base.supervise import stop_on_signals
    from kgpu.base.waits import first_of
    from kgpu.discovery.master.off import FeatureRulesOff
    from kgpu.kube.client import connect
    from kgpu.kube.informer import Scope
    from kgpu.kube.port import NODES
    from kgpu.kube.shared_informer import SharedInformer
    from kgpu.manager.run import ManagerProcess
    from kgpu.operations.collecting import CollectingProcess
    from kgpu.operations.off import OperationsOff
    from kgpu.operations.run import OperationsController
    from kgpu.operator.run import OperatorController, find_owner
    from kgpu.operator.watching import PAUSE

    def now() -> float:
        """By the API server's clock, so that the next leader reads times as this one wrote them."""
        return time.time() + manager.lead.server_ahead

    api, stop = connect(kubeconfig), asyncio.Event()
    try:
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT):
            finding = asyncio.ensure_future(find_owner(api, settings.namespace, os.environ.get("POD_NAME", "")))
            if not await first_of(finding, stop.wait()):
                return
            shared = budget is not None or master is not None
            nodes = SharedInformer(api, Scope(NODES), backoff=Backoff(PAUSE)) if shared else None
            policies = OperatorController(api, dataclasses.replace(settings, owner=finding.result()), nodes=nodes)
            controllers: list[LeaderController] = [policies]
            if master is None or nodes is None:
                controllers.append(FeatureRulesOff(settings.namespace))
            else:
                from kgpu.discovery.master.run import FeatureRulesController

                controllers.append(
                    FeatureRulesController(api, master, nodes=nodes, other=lambda: policies.other_discovery)
                )
            if budget is None:
                controllers.append(OperationsOff())
            else:
                own_pod = (settings.namespace, os.environ.get("POD_NAME", ""))
                controllers.append(
                    OperationsController(
                        api,
                        budget,
                        own_pod=own_pod,
                        acts=acts,
                        remediation=policy,
                        mig=mig,
                        now=now,
                        nodes=nodes,
                        notifier=_notifier(webhook, now),
                        collector=CollectingProcess(kubeconfig=kubeconfig, namespace=settings.namespace),
                    )
                )
            manager = ManagerProcess(api, controllers, options)
            manager.stop = stop
            await manager.run()
    finally:
        await api.close()


def master_of(options: Mapping[str, Any]) -> MasterSettings | None:
    """What carries out rules of node features, None if that is switched off. Raises ConfigError."""
    from kgpu.discovery.master.config import read_master

    where = f"--feature-rules-config or {ENV_FEATURE_RULES_CONFIG}"
    settings = read_master(_mapping(options, "feature_rules_config", where), options["namespace"], where)
    return settings if _bool(options, "feature_rules", f"--feature-rules or {ENV_FEATURE_RULES}") else None


async def _clean_up(kubeconfig: str, namespace: str, limits: Limits) -> None:
    from kgpu.discovery.master.writing import give_back
    from kgpu.kube.client import connect
    from kgpu.operator.cleanup import clean_up

    api = connect(kubeconfig)
    try:
        await clean_up(api, namespace, limits, say=click.echo)
        await give_back(api, namespace)
    finally:
        await api.close()


def settings_of(options: Mapping[str, Any], env: Mapping[str, str]) -> OperatorSettings:
    """``OperatorSettings`` from click's parameters. Raises ConfigError."""
    from kgpu.dra.gates import read_gates
    from kgpu.operator.model import AgentNodes, Allocation, NodeLayout, OperatorSettings, OtherPresence

    allocation = Allocation(_one_of(options, "allocation", "--allocation or KGPU_ALLOCATION", list(Allocation)))
    dra = _bool(options, "dra", "--dra or KGPU_DRA")
    if allocation is Allocation.DRA and not dra:
        raise ConfigError(
            "nodes are to hand out their GPUs by claims, and the DRA driver is switched off",
            "--allocation=dra together with --dra=true", "set --dra=true, or --allocation=device-plugin",
        )  # fmt: skip
    read_gates(options["dra_gates"])
    _mapping(options, "features_config", f"--features-config or {ENV_FEATURES_CONFIG}")
    return OperatorSettings(
        namespace=_needed(options, "namespace", "--namespace or OPERATOR_NAMESPACE", "the operator's own namespace"),
        image=_needed(options, "image", "--image or OPERATOR_IMAGE", "kgpu's own image"),
        image_pull_policy=options["image_pull_policy"],
        image_pull_secrets=tuple(
            secret.strip() for secret in options["image_pull_secrets"].split(",") if secret.strip()
        ),
        layout=NodeLayout(
            _one_of(options, "layout", "--layout or KGPU_LAYOUT", [str(layout) for layout in NodeLayout])
        ),
        vendors=_vendors(options["vendors"]),
        device_configs=_bool(options, "device_configs", "--device-configs or KGPU_DEVICE_CONFIGS"),
        agent_nodes=AgentNodes(
            _one_of(options, "agent_nodes", "--agent-nodes or KGPU_AGENT_NODES", [str(nodes) for nodes in AgentNodes])
        ),
        agent_selector=_texts(options, "agent_selector", "--agent-node-selector or KGPU_AGENT_NODE_SELECTOR"),
        allocation=allocation,
        dra=dra,
        dra_gates=options["dra_gates"],
        discovery=_bool(options, "discovery", "--discovery or KGPU_DISCOVERY"),
        other_discovery=OtherPresence(
            _one_of(
                options,
                "other_discovery",
                "--other-discovery or KGPU_OTHER_DISCOVERY",
                [str(presence) for presence in OtherPresence],
            )
        ),
        feature_rules=_bool(options, "feature_rules", f"--feature-rules or {ENV_FEATURE_RULES}"),
        features_config=options["features_config"],
        other_operator=OtherPresence(
            _one_of(
                options,
                "other_operator",
                "--other-operator or KGPU_OTHER_OPERATOR",
                [OtherPresence.DETECT, OtherPresence.IGNORE],
            )
        ),
        operations=_bool(options, "operations", "--operations or KGPU_OPERATIONS"),
        health=_bool(options, "health", "--health or KGPU_HEALTH"),
        health_config=options["health_config"],
        usage=_bool(options, "usage", f"--usage or {ENV_USAGE}"),
        usage_labels=tuple(word.strip() for word in options["usage_labels"].split(",") if word.strip()),
        host_facts=_bool(options, "host_facts", "--host-facts or KGPU_HOST_FACTS"),
        monitoring=_monitoring(options),
        images={name: value for name, value in env.items() if name.endswith("_IMAGE") and value},
    )


def operations_config_of(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The chart's values for operations. Raises ConfigError."""
    return _mapping(options, "operations_config", "--operations-config or KGPU_OPERATIONS_CONFIG")


def remediation_of(config: Mapping[str, Any]) -> RemediationPolicy:
    """What may be done about GPUs that are not well. Raises ConfigError."""
    from kgpu.operations.config import read_remediation

    return read_remediation(config.get("remediation"), allow_force=config.get("allowForce") is True)


def mig_of(config: Mapping[str, Any]) -> MigPolicy:
    """How GPUs are emptied before they are cut into other MIG slices. Raises ConfigError."""
    from kgpu.operations.config import read_mig

    return read_mig(config.get("mig"), allow_force=config.get("allowForce") is True)


def webhook_of(options: Mapping[str, Any]) -> WebhookSettings | None:
    """Where notifications are posted, None for nowhere. Raises ConfigError."""
    if not options["webhook_url"].strip():
        if secret := options["webhook_secret"]:
            missing = f"there are no notifications: the Secret {secret} has no key url"
            click.echo(f"warning: {missing}; to do: create it, and restart the operator", err=True)
        return None
    from kgpu.notifications.settings import read_webhook

    return read_webhook(
        options["webhook_url"], token=options["webhook_token"], min_severity=options["webhook_min_severity"],
        form=options["webhook_format"], cluster=options["cluster_name"],
    )  # fmt: skip


def _notifier(webhook: WebhookSettings | None, now: Callable[[], float]) -> Notifier | None:
    if webhook is None:
        return None
    from kgpu.base.clock import SystemClock
    from kgpu.notifications.notifier import Notifier
    from kgpu.notifications.webhook import Webhook

    return Notifier(webhook, Webhook(webhook), clock=SystemClock(), now=now)


def acts_of(settings: OperatorSettings, config: Mapping[str, Any]) -> ActSettings:
    """How pods that act on nodes are made: as the operator's other pods. Raises ConfigError."""
    from kgpu.operations.config import read_host_paths
    from kgpu.operations.writing import ActSettings

    return ActSettings(
        namespace=settings.namespace, image=settings.image, pull_policy=settings.image_pull_policy,
        pull_secrets=settings.image_pull_secrets,
        paths=read_host_paths(config),
    )  # fmt: skip


def budget_of(config: Mapping[str, Any], options: Mapping[str, Any]) -> OperationBudget | None:
    """What operations share, None where none are carried out. Raises ConfigError."""
    from kgpu.operations.config import read_budget

    budget = read_budget(config)
    return budget if _bool(options, "operations", "--operations or KGPU_OPERATIONS") else None


def _one_of(options: Mapping[str, Any], name: str, where: str, words: Sequence[str]) -> str:
    """One of the words. Raises ConfigError."""
    value: str = options[name]
    if value in words:
        return value
    hint = did_you_mean(value, list(words))
    raise ConfigError(
        f'there is no {name.replace("_", " ")} "{value}"' + (f"; {hint}" if hint else ""),
        f"one of: {', '.join(words)}",
        f"correct {where}",
    )


def _vendors(told: str) -> frozenset[str]:
    """The vendors in the list. Raises ConfigError for one that there is not, and for none at all."""
    from kgpu.operator.vendors import VENDORS

    chosen = [word for word in map(str.strip, told.split(",")) if word]
    strange = next((word for word in chosen if word not in VENDORS), "")
    if strange or not chosen:
        hint = did_you_mean(strange, list(VENDORS)) if strange else ""
        raise ConfigError(
            (f'there is no vendor "{strange}"' if strange else "no vendor is served") + (f"; {hint}" if hint else ""),
            f"some of: {', '.join(VENDORS)}",
            "correct --vendors or KGPU_VENDORS (the Helm value vendors)",
        )
    return frozenset(chosen)


def _monitoring(options: Mapping[str, Any]) -> Monitoring:
    from kgpu.monitoring.rules import adjusted
    from kgpu.monitoring.scrape import read_scrape
    from kgpu.operator.model import Monitoring

    return Monitoring(
        rules=_bool(options, "alert_rules", "--alert-rules or KGPU_ALERT_RULES"),
        alerts=adjusted(_mapping(options, "alerts", "--alerts or KGPU_ALERTS"), "alerts"),
        dashboards=_bool(options, "dashboards", "--dashboards or KGPU_DASHBOARDS"),
        labels=_texts(options, "dashboard_labels", "--dashboard-labels or KGPU_DASHBOARD_LABELS"),
        annotations=_texts(options, "dashboard_annotations", "--dashboard-annotations or KGPU_DASHBOARD_ANNOTATIONS"),
        scrape=read_scrape(_mapping(options, "scrape", "--scrape or KGPU_SCRAPE"), "monitoring.scrape"),
    )


def _mapping(options: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    from kgpu.formats import yaml

    try:
        mapping = yaml.load(options[name]) if options[name].strip() else {}
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.what}", error.expected, error.remedy) from error
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
        raise ConfigError(f"{where} is no mapping", "YAML or JSON such as {a: b}", f"correct {where}")
    return mapping


def _texts(given: Mapping[str, Any], name: str, where: str) -> dict[str, str]:
    found = _mapping(given, name, where)
    for key, value in found.items():
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} is {value!r}", "a text; numbers in quotes", f"correct {where}")
    return dict(found)


def options_of(options: Mapping[str, Any], env: Mapping[str, str]) -> Options:
    """``Options`` from click's parameters. Raises ConfigError."""
    from kgpu.kube.leader_election import LeaseTimes
    from kgpu.manager.run import Options

    deadline = _seconds(options, "renew_deadline", "--leader-lease-renew-deadline")
    if deadline <= LeaseTimes().retry:
        raise ConfigError(
            f"a lease that must be renewed within {deadline:g} s can't be kept",
            f"more than {LeaseTimes().retry:g} s",
            "correct --leader-lease-renew-deadline",
        )
    pod = env.get("POD_NAME", "")
    return Options(
        elect=_bool(options, "leader_elect", "--leader-elect"),
        lease_namespace=options["lease_namespace"] or options["namespace"],
        lease_times=LeaseTimes(duration=deadline + 5.0, deadline=deadline),
        identity=f"{pod}_{uuid.uuid4()}" if pod else "",
        metrics=_address(options["metrics_address"], "--metrics-bind-address"),
        health=_address(options["health_address"], "--health-probe-bind-address"),
    )


def _address(value: str, flag: str) -> Address | None:
    from kgpu.base.http import parse_address

    return None if value in {"", "0"} else parse_address(value, flag=flag)


def _needed(given: Mapping[str, Any], name: str, where: str, what: str) -> str:
    value = str(given[name])
    if not value:
        raise ConfigError(f"{what} is not known", "its name", f"set {where}")
    return value


def _bool(given: Mapping[str, Any], name: str, where: str) -> bool:
    value = _BOOLS.get(str(given[name]))
    if value is None:
        raise ConfigError(f'"{given[name]}" is no yes or no', "true or false", f"correct {where}")
    return value


def _seconds(given: Mapping[str, Any], name: str, where: str) -> float:
    from kgpu.formats.duration import parse_duration

    try:
        seconds = parse_duration(given[name]) / 1e9
    except ConfigError as error:
        raise ConfigError(error.what, "a duration as in 90s or 2m", f"correct {where}") from error
    if seconds <= 0:
        raise ConfigError(f"{given[name]} is no time to wait", "a duration above zero, as in 90s", f"correct {where}")
    return seconds


def _level(level: str, zap: str) -> str:
    """Zap's numbers are more and more verbose; its names are the same as ours."""
    if zap in {"debug", "info", "error"}:
        return zap
    return "debug" if zap.isdecimal() and int(zap) > 0 else level


def _form(form: str, encoder: str) -> str:
    return {"json": "json", "console": "text"}.get(encoder, form)
