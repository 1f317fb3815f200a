"""GPUUsagePolicy and GPUUsageOverride ``kgpu.dev/v1alpha1``: what becomes of GPUs that are held and not used.

A policy observes unless it says otherwise. An override is for one namespace and can only be gentler than the policy:
a milder mode, longer times. Namespaces of the system are refused, and so is a policy that would reclaim everywhere.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from kgpu.formats.crd.common import INT64, Block, doc
from kgpu.formats.crd.status import CONDITIONS_LIST, StatusCondition

MODES: Final = ("observe", "notify", "reclaim")
"""From the mildest on."""
SYSTEM_NAMESPACES: Final = ("kube-system", "kube-public", "kube-node-lease")
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MAX_FROZEN_NODES: Final = 100
MAX_ACTIONS: Final = 20
"""Actions that a status shows; the record has more."""
LONGEST_SECONDS: Final = 10**8
LEAST: Final = "1m"
"""The shortest time of a policy where nothing else is said."""
LEAST_AFTER: Final = "30m"
"""The shortest time after which a workload may be stopped."""
LEAST_GRACE: Final = "5m"
LEAST_KEEP: Final = "1h"
TEMPLATE_FIELDS: Final = (
    "who", "namespace", "what", "idle", "since", "wasted", "perHour", "assumed", "deadline", "keep", "policy",
)  # fmt: skip
"""What a receiver's own text may have in braces."""
_DURATION: Final = r"^([0-9]{1,6}[smh]){1,3}$"
_HOURS: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
_AMOUNT: Final = r"^[0-9]{1,6}(\.[0-9]{1,6})?$"
_PERCENT: Final = {"format": "int32", "maximum": 100}
_COUNT: Final = {"format": "int32", "maximum": 1000}
_NAME: Final = {"minLength": 1, "maxLength": 253}
_NAMES: Final = {"maxItems": 200, "items": {"type": "string", **_NAME}}
_SPACES: Final = {"maxItems": 200, "items": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}}
_OWNERS: Final = {
    "maxItems": 200,
    "items": {"type": "string", "maxLength": 400, "pattern": "^[^/ ]+/[^/ ]+(/[^/ ]+)?$"},
}
_LABELS: Final = {"maxProperties": 50}
Labels: TypeAlias = dict[str, str]


def _no_less(least: str, *, empty: bool = False) -> tuple[tuple[str, str], ...]:
    """That a duration is in its bounds; ``empty``: or not given."""
    longest = LONGEST_SECONDS // 3600
    rule = f"duration(self) >= duration('{least}') && duration(self) <= duration('{LONGEST_SECONDS}s')"
    return ((f"self == '' || ({rule})" if empty else rule, f"it has to be at least {least}, and at most {longest}h"),)


_ONE_DAY: Final = (
    (
        "size(self) != 11 || self.substring(0, 5) < self.substring(6)",
        "it has to begin before it ends, on one day, such as 08:00-18:00",
    ),
)
# Whether there is a zone of that name is for whoever follows the policy: an API server has its own list, if any.
_ZONE: Final = (
    (
        "self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')",
        "it has to be the name of a time zone, such as Europe/Berlin or UTC",
    ),
)
_FILLED: Final = (
    (
        f"self.matches('^([^{{}}]|[{{][{{]|[}}][}}]|[{{]({'|'.join(TEMPLATE_FIELDS)})[}}])*$')",
        (
            f"it may have in braces only {', '.join(f'{{{name}}}' for name in TEMPLATE_FIELDS)}; write {{{{ and }}}} "
            "for braces themselves"
        ),
    ),
)
_ONE_PRICE: Final = (
    (
        (
            "!has(self.pricesConfigMap) || self.pricesConfigMap == '' || !has(self.perGpuHour) || "
            "double(self.perGpuHour) == 0.0"
        ),
        "perGpuHour and pricesConfigMap can't both be given: it is one price, or a list",
    ),
)
NAMED: Final = (
    "!has(self.mode) || self.mode != 'reclaim' || (has(self.namespaces) && size(self.namespaces) > 0)",
    "a policy that reclaims has to name its namespaces",
)
NOT_THE_SYSTEM: Final = (
    "!has(self.namespaces) || !self.namespaces.exists(n, n in ['kube-system', 'kube-public', 'kube-node-lease'])",
    "namespaces of the system are never touched: take them out of spec.namespaces",
)


class UsageIdle(Block, frozen=True, kw_only=True):
    """When a GPU is called idle, for notices."""

    activity_percent: Annotated[
        int, doc("No signal of activity reaches this within the time.", minimum=1, schema=_PERCENT)
    ] = 5
    after: Annotated[
        str, doc("For how long a GPU has to be idle; at least `1m`.", pattern=_DURATION, rules=_no_less(LEAST))
    ] = "1h"
    node_after: Annotated[
        str, doc("For how long all GPUs of a node have to be; at least `1m`.", pattern=_DURATION, rules=_no_less(LEAST))
    ] = "30m"
    warm_up: Annotated[
        str,
        doc("How long a pod is left alone after its start; at least `1m`.", pattern=_DURATION, rules=_no_less(LEAST)),
    ] = "15m"
    coverage_percent: Annotated[
        int, doc("How much of the time has to be covered by readings.", minimum=50, schema=_PERCENT)
    ] = 90
    power_margin_percent: Annotated[
        int, doc("How far above the model's idle power an idle GPU may be.", minimum=0, schema=_PERCENT)
    ] = 15


class UsageReclaim(Block, frozen=True, kw_only=True):
    """When an idle workload is stopped, in mode `reclaim`."""

    activity_percent: Annotated[
        int, doc("No signal of activity reaches this within the time.", minimum=1, schema=_PERCENT)
    ] = 1
    after: Annotated[
        str, doc("For how long it has to be idle; at least `30m`.", pattern=_DURATION, rules=_no_less(LEAST_AFTER))
    ] = "2h"
    grace: Annotated[
        str, doc("From the warning to the act; at least `5m`.", pattern=_DURATION, rules=_no_less(LEAST_GRACE))
    ] = "30m"
    bare_pods: Annotated[
        bool,
        doc("Whether pods without an owner are evicted, too, if they have the annotation `kgpu.dev/idle-policy: "
            "reclaim`. Nothing makes them anew."),
    ] = False  # fmt: skip
    longest_keep: Annotated[
        str,
        doc("For how long annotations that name an end, such as `kgpu.dev/keep-until`, keep an idle workload, from "
            "when it is first seen to be kept until its GPUs are used; at least `1h`. Those of a namespace are not "
            "limited.",
            pattern=_DURATION, rules=_no_less(LEAST_KEEP)),
    ] = "168h"  # fmt: skip
    limit_exemptions: Annotated[
        bool,
        doc("Whether `longestKeep` is the limit of annotations without an end, too, such as `kgpu.dev/idle-policy: "
            "never` and `karpenter.sh/do-not-disrupt`, on pods and their owners."),
    ] = False  # fmt: skip


class UsageSchedule(Block, frozen=True, kw_only=True):
    """When workloads may be stopped; warnings are given at any time."""

    days: Annotated[
        tuple[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ...],
        doc("On which days.", schema={"maxItems": 7}),
    ] = ("Mon", "Tue", "Wed", "Thu", "Fri")
    hours: Annotated[
        str,
        doc(
            "From when to when on one day, such as `08:00-18:00`.",
            pattern=_HOURS,
            rules=_ONE_DAY,
            schema={"maxLength": 11},
        ),
    ] = "08:00-18:00"
    time_zone: Annotated[
        str, doc("Whose hours these are, such as `Europe/Berlin`.", rules=_ZONE, schema={"maxLength": 64})
    ] = "UTC"


class UsageProtect(Block, frozen=True, kw_only=True):
    """What is never stopped."""

    namespaces: Annotated[tuple[str, ...], doc("These namespaces.", schema=_SPACES)] = ()
    labels: Annotated[Labels, doc("Pods with one of these labels.", schema=_LABELS)] = msgspec.field(
        default_factory=dict
    )
    priority_at_least: Annotated[
        int, doc("Pods of this priority or a higher one.", schema={"format": "int32", "maximum": 2**31 - 1})
    ] = 1_000_000
    kinds: Annotated[tuple[str, ...], doc("Owners of these kinds, such as `StatefulSet`.", schema=_NAMES)] = ()
    owners: Annotated[
        tuple[str, ...], doc("Owners by name, as `NAMESPACE/KIND/NAME` or `KIND/NAME`.", schema=_OWNERS)
    ] = ()


class UsageBudget(Block, frozen=True, kw_only=True):
    """The most that may be stopped."""

    per_minute: Annotated[int, doc("Workloads a minute.", minimum=1, schema=_COUNT)] = 1
    per_hour_per_namespace: Annotated[int, doc("Workloads an hour in one namespace.", minimum=1, schema=_COUNT)] = 5
    max_share_percent: Annotated[
        int, doc("GPUs an hour, as a share of those that are held; one workload is always allowed.", minimum=1,
                 schema=_PERCENT)
    ] = 10  # fmt: skip
    stop_after_resumes: Annotated[
        int, doc("So many workloads that people bring back within an hour stop the policy for a day.", minimum=1,
                 schema=_COUNT)
    ] = 2  # fmt: skip


class UsageSecretRef(Block, frozen=True, kw_only=True):
    """A key of a Secret in the operator's namespace."""

    name: Annotated[str, doc("The Secret's name.", schema=_NAME)]
    key: Annotated[str, doc("The key with the webhook's URL.", schema=_NAME)] = "url"


class UsageReceiver(Block, frozen=True, kw_only=True):
    """Who is told. A warning that has not been delivered to every receiver is followed by no act."""

    type: Annotated[
        Literal["slack", "teams", "webhook"],
        doc("The form of the messages: Slack's (also Mattermost), Teams' cards, or plain JSON."),
    ]
    secret_ref: Annotated[UsageSecretRef, doc("Where the webhook's URL is; it is a secret and never shown.")]
    channel: Annotated[str, doc("Slack's channel, where the webhook lets one choose.", schema={"maxLength": 80})] = ""
    mentions: Annotated[
        tuple[str, ...],
        doc("Who is mentioned: Slack's ids of users or groups, `here` or `channel`.",
            schema={"maxItems": 10, "items": {"type": "string", "pattern": r"^([UWS][A-Z0-9]{2,20}|here|channel)$"}}),
    ] = ()  # fmt: skip
    min_waste: Annotated[
        str, doc("Notices about less than this amount are not sent; warnings and acts are.", pattern=_AMOUNT)
    ] = "0"
    template: Annotated[
        str,
        doc("The text about each idle workload and node, and in each warning, in place of kgpu's own: with `{who}`, "
            "`{namespace}`, `{what}`, `{idle}`, `{since}`, `{wasted}`, `{perHour}`, `{assumed}`, `{deadline}`, "
            "`{keep}`, `{policy}`. A deadline, and the command that keeps a workload, are added where they lack.",
            rules=_FILLED, schema={"maxLength": 500}),
    ] = ""  # fmt: skip


class UsageRequests(Block, frozen=True, kw_only=True):
    """Whether inference servers' own counters of requests keep a workload, in mode `reclaim`."""

    watch: Annotated[
        bool,
        doc('Ask pods with the annotation `prometheus.io/scrape: "true"` for their metrics every minute. One that has '
            "served requests within `reclaim.after`, or whose requests are not known, is not stopped."),
    ] = False  # fmt: skip
    metrics: Annotated[
        tuple[str, ...],
        doc("Names of further counters of requests, beside those of vLLM, SGLang, TGI, Triton, TensorFlow Serving and "
            "TorchServe.",
            schema={"maxItems": 20, "items": {"type": "string", "pattern": r"^[a-zA-Z_:][a-zA-Z0-9_:]{0,199}$"}}),
    ] = ()  # fmt: skip


class UsageCost(Block, frozen=True, kw_only=True):
    """What an hour of a GPU costs in messages."""

    currency: Annotated[str, doc("The currency of `perGpuHour`.", pattern=r"^[A-Z]{3}$")] = "USD"
    per_gpu_hour: Annotated[
        str, doc("The price of every GPU; the price list's, by node and model, if not given.", pattern=_AMOUNT)
    ] = "0"
    prices_config_map: Annotated[
        str,
        doc("A ConfigMap in the operator's namespace with a price list of its own, in one key such as `prices.csv`; "
            "the cluster's list, the Helm value `usage.prices.configMap`, if not given.",
            pattern=r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", schema={"maxLength": 253}),
    ] = ""  # fmt: skip


class GPUUsagePolicySpec(Block, frozen=True, kw_only=True):
    """What becomes of GPUs that are held and not used."""

    mode: Annotated[
        Literal["observe", "notify", "reclaim"],
        doc("`observe` shows what would be done; `notify` tells people; `reclaim` also stops workloads that stay idle, "
            "in namespaces with the label `kgpu.dev/reclaim: enabled`."),
    ] = "observe"  # fmt: skip
    namespaces: Annotated[
        tuple[str, ...], doc("Which namespaces it is about; all that no other policy names if empty.", schema=_SPACES)
    ] = ()
    idle: Annotated[UsageIdle, doc("When a GPU is called idle, for notices.")] = UsageIdle()
    reclaim: Annotated[UsageReclaim, doc("When an idle workload is stopped.")] = UsageReclaim()
    schedule: Annotated[UsageSchedule, doc("When workloads may be stopped.")] = UsageSchedule()
    protect: Annotated[UsageProtect, doc("What is never stopped.")] = UsageProtect()
    budget: Annotated[UsageBudget, doc("The most that may be stopped.")] = UsageBudget()
    requests: Annotated[UsageRequests, doc("Whether requests that are served keep a workload.")] = UsageRequests()
    notify: Annotated[tuple[UsageReceiver, ...], doc("Who is told.", schema={"maxItems": 10})] = ()
    cost: Annotated[UsageCost, doc("What an hour of a GPU costs in messages.", rules=_ONE_PRICE)] = UsageCost()


class UsageAction(Block, frozen=True, kw_only=True):
    """Something that was done by the policy."""

    at: Annotated[str, doc("When.", schema={"format": "date-time"})]
    what: Annotated[str, doc("What was done, to whom, and why.", schema={"maxLength": 1024})]
    undo: Annotated[str, doc("The command that takes it back.", schema={"maxLength": 512})] = ""


class GPUUsagePolicyStatus(Block, frozen=True, kw_only=True):
    """What kgpu makes of the policy."""

    observed_generation: Annotated[
        int | None, doc("The generation of the spec that this is about.", minimum=0, schema=INT64)
    ] = None
    conditions: Annotated[
        tuple[StatusCondition, ...],
        doc("`Accepted`, `DataComplete`, `Acting`, `Frozen`, `Notified` and `Priced`.", schema=CONDITIONS_LIST),
    ] = ()
    frozen_nodes: Annotated[
        tuple[str, ...],
        doc("Where `Frozen` is true: the nodes whose data is in doubt, all if none is named.",
            schema={"maxItems": MAX_FROZEN_NODES}),
    ] = ()  # fmt: skip
    idle_workloads: Annotated[int | None, doc("Workloads of its namespaces that are idle now.")] = None
    idle_devices: Annotated[int | None, doc("GPUs, or partitions of GPUs, that these hold.")] = None
    warned: Annotated[int | None, doc("Workloads with a deadline.")] = None
    last_actions: Annotated[
        tuple[UsageAction, ...], doc("What was done last, the newest first.", schema={"maxItems": MAX_ACTIONS})
    ] = ()


class GPUUsageOverrideSpec(Block, frozen=True, kw_only=True):
    """A namespace's own wishes. What is harsher than the policy is not followed, and told."""

    mode: Annotated[
        Literal["", "observe", "notify", "reclaim"],
        doc("The strongest mode that is allowed here; empty: the policy's."),
    ] = ""
    idle_after: Annotated[
        str,
        doc(
            "For how long a GPU has to be idle, if longer than the policy says.",
            pattern=f"^$|{_DURATION}",
            rules=_no_less(LEAST, empty=True),
        ),
    ] = ""
    reclaim_after: Annotated[
        str, doc("The same before a workload is stopped.", pattern=f"^$|{_DURATION}", rules=_no_less(LEAST, empty=True))
    ] = ""
    grace: Annotated[
        str, doc("From the warning to the act, likewise.", pattern=f"^$|{_DURATION}", rules=_no_less(LEAST, empty=True))
    ] = ""
    protect_labels: Annotated[Labels, doc("More pods that are never stopped, by label.", schema=_LABELS)] = (
        msgspec.field(default_factory=dict)
    )
