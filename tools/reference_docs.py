"""Writes the tables in docs/reference and docs/how-to from the tables that the programs run on.

``python tools/reference_docs.py`` rewrites the files; with ``--check`` it exits 1 when one is not current. Only what
stands between the marks ``<!-- generated: NAME -->`` and ``<!-- end -->`` is touched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from kgpu.advise.model import SharingWay
from kgpu.advise.ways import FACTS as SHARING_FACTS
from kgpu.advise.ways import NEEDS as SHARING_NEEDS
from kgpu.cli.agent import OPTIONS as AGENT_OPTIONS
from kgpu.cli.cdi import OPTIONS as CDI_OPTIONS
from kgpu.cli.config_manager import FLAGS as MANAGER_FLAGS
from kgpu.cli.ctk_system import LINK_FLAGS, NODE_FLAGS
from kgpu.cli.operator import COMMON as CLEANUP_OPTIONS
from kgpu.cli.operator import LEADER_ELECT
from kgpu.cli.operator import RUN as OPERATOR_OPTIONS
from kgpu.cli.runtime import PLACE_FLAGS, RESTART_FLAGS, USUAL, WANTED_FLAGS
from kgpu.cli.validate import PEER_FLAGS as VALIDATOR_FLAGS
from kgpu.deviceplugin.config import FLAGS
from kgpu.discovery.config import OPTIONS
from kgpu.doctor.model import Place
from kgpu.doctor.rules import all_rules
from kgpu.drivermanager.config import SETTINGS as DRIVER_MANAGER_SETTINGS
from kgpu.exporter import options as exporter
from kgpu.exporter.field_table import all_fields
from kgpu.exporter.vendors.amd import rows as rocm
from kgpu.exporter.vendors.gaudi import rows as gaudi
from kgpu.exporter.vendors.rows import VendorRow
from kgpu.formats import exporter_flags, support
from kgpu.formats.crd import common, core, field_support
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.deviceconfig import DeviceConfigSpec
from kgpu.formats.crd.fields import Type, rows
from kgpu.formats.crd.nodeoperation import NodeOperationSpec
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.formats.crd.usagepolicy import GPUUsageOverrideSpec, GPUUsagePolicySpec
from kgpu.formats.device_config_flags import FLAGS as DEVICE_CONFIG_FLAGS
from kgpu.formats.mig_manager_flags import FLAGS as MIG_FLAGS
from kgpu.formats.mig_manager_flags import PROCESS as MIG_PROCESS
from kgpu.formats.mig_manager_flags import WITHOUT as MIG_WITHOUT
from kgpu.formats.settings import Restart, Setting
from kgpu.formats.toolkit_config import BY_NAME, KEYS
from kgpu.formats.toolkit_values import toml
from kgpu.formats.xid.action import WORDS
from kgpu.formats.xid.buckets import GUIDANCE, RECOVERY
from kgpu.formats.xid.catalogue import guidance, switch_guidance, sxids, xids
from kgpu.health import config as health
from kgpu.health.amdgpu_log import ROWS as AMDGPU_LINES
from kgpu.health.settings import SOURCES as HEALTH_SOURCES
from kgpu.host.engines import places
from kgpu.hw.recovery import RECOVERY_ACTIONS
from kgpu.hw.simulator import machines
from kgpu.hw.simulator.load_profiles import LOADS
from kgpu.hw.simulator.operate import FAULTS
from kgpu.hw.simulator.settings import SETTINGS
from kgpu.lab import samples
from kgpu.lab.conformance.skips import SIGS, SKIPS
from kgpu.lab.scenarios import model as scenarios
from kgpu.notifications import notifier
from kgpu.operations import metrics as operations_metrics
from kgpu.operator.metrics import OWN_ROWS, PREFIX, ROWS
from kgpu.operator.rendering import ignored
from kgpu.toolkit import settings as toolkit
from kgpu.toolkit.modes.table import MODULES, mode_named
from kgpu.toolkit.nri import config as nri
from kgpu.usage.prices import list_prices
from kgpu.usage.reclaim.guards import GUARDS
from kgpu.usage.reclaim.owners import ROWS as OWNER_ROWS
from kgpu.usage.reclaim.templates import FIELDS as TEMPLATE_FIELDS
from kgpu.usage.states import STATES
from kgpu.validator import config as validator
from kgpu.validator.metrics import METRICS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

from tools import vendor_table  # noqa: E402

DOCS = ROOT / "docs"
FOLDERS = ("reference", "how-to")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _default(value: object) -> str:
    if value is None or value in ("", (), {}):
        return "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


_HEAD = ("flag", "environment", "config key", "default", "a change needs", "meaning")


def _options(rows: Iterable[Setting], default: Callable[[Setting], str] = lambda row: _default(row.default)) -> str:
    """A row for each setting, and of the columns those that have anything to say."""
    cells = [
        (
            _codes(row.flags),
            _codes(row.envs),
            _codes((row.key,)),
            default(row),
            "nothing" if row.restart is Restart.NONE else "restart",
            f"no effect here, because {row.idle}" if row.idle else row.help,
        )
        for row in rows
    ]
    silent = [{"-"}] * 4 + [{"restart"}, {""}]
    shown = [number for number, column in enumerate(zip(*cells, strict=True)) if set(column) - silent[number]]
    return _table(tuple(_HEAD[number] for number in shown), [tuple(row[number] for number in shown) for row in cells])


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if name) or "-"


def _profiles() -> str:
    rows = []
    for name in machines.names():
        profile = machines.load(name)
        rows.append((f"`{name}`", str(len(profile.gpus)), profile.title))
    return _table(("profile", "GPUs", "machine"), rows)


def _settings() -> str:
    rows = [(f"`{row.key}`", row.unit or "-", "node" if row.node else "GPU", row.doc) for row in SETTINGS.values()]
    return _table(("key", "unit", "about", "meaning"), rows)


def _loads() -> str:
    rows = [(f"`{name}`", f"{row.memory:.0%}" if row.memory else "-", row.title) for name, row in LOADS.items()]
    return _table(("profile", "memory", "what it is"), rows)


def _faults() -> str:
    return _table(("fault", "what happens"), [(f"`{name}`", text) for name, text in FAULTS.items()])


def _scenarios() -> str:
    rows = []
    for name in scenarios.bundled():
        story = scenarios.load(name)
        rows.append((f"`{name}`", f"**{story.title}.** {' '.join(story.story.split())}"))
    return _table(("scenario", "what it shows"), rows)


def _conformance_skips() -> str:
    rows = [(f"`{skip.pattern}`", ", ".join(skip.labs), skip.reason) for skip in SKIPS]
    return _table(("tests with this in their name", "not run on", "because"), rows)


def _conformance_sigs() -> str:
    return ", ".join(f"`{sig}`" for sig in SIGS)


def _samples() -> str:
    return _table(("sample", "image names (regular expression)"), [(s.name, f"`{s.pattern}`") for s in samples.SAMPLES])


def _doctor_rules() -> str:
    """The doctor's rules by the place where a GPU gets lost, from the hardware up."""
    parts = []
    for place in Place:
        rules = sorted((rule for rule in all_rules() if rule.place is place), key=lambda rule: rule.id)
        rows = [
            (
                f"`{rule.id}`",
                rule.title,
                ", ".join(f"`{one}`" for one in rule.also) or "-",
                rule.explain,
                "; ".join(rule.rests_on) or "-",
            )
            for rule in rules
        ]
        head = ("id", "what is wrong", "covers too", "why, and what helps", "rests on")
        title = f"{place.title[0].upper()}{place.title[1:]}"
        parts.append(f"## {title}\n{_table(head, rows)}")
    return "\n\n".join(parts)


BLOCKS = (
    common.Image, common.EnvImage, common.OperandContainer, common.Component, common.SideContainer,
    common.ComputeResources,
    common.EnvVar, common.Probe, common.Rdma, common.UpgradePolicy, core.ServiceMonitor,
)  # fmt: skip
BLOCK_NAMES = {block: f"{block.__name__[0].lower()}{block.__name__[1:]}" for block in BLOCKS}
# As users call them: a policy has containers of operands only, and no other resources.
BLOCK_NAMES |= {common.OperandContainer: "container", common.ComputeResources: "resources"}


def _words(kind: Type) -> str:
    """A field's type; a shared block by its name."""
    if kind.items or kind.values:
        return f"{'list' if kind.items else 'map'} of {_words(kind.items or kind.values)}"  # type: ignore[arg-type]
    if kind.struct:
        block = next((BLOCK_NAMES[base] for base in kind.struct.__mro__ if base in BLOCK_NAMES), "")
        home = "Prometheus" if kind.struct is core.RelabelConfig else "Kubernetes"
        return block or (f"{home} {kind.struct.__name__}" if kind.struct.__module__ == core.__name__ else "section")
    if kind.enum:
        return ", ".join(f"`{word}`" if word else "empty" for word in kind.enum)
    return "int or string" if kind.int_or_string else {bool: "bool", int: "int", str: "string"}[kind.scalar or str]


def _crd_rows(struct: type, above: str = "") -> list[tuple[str, ...]]:
    """The fields of a struct that its shared base does not have, and those of the sections in it."""
    found: list[tuple[str, ...]] = []
    inherited = {
        (row.name, str(row.default)) for base in struct.__mro__[1:] if base in BLOCK_NAMES for row in rows(base)
    }
    for row in rows(struct):
        if (row.name, str(row.default)) in inherited:
            continue
        inner = row.type.items or row.type
        default = "always there" if row.default == {} else _default(row.default)
        default = "required" if row.required else default
        found.append((f"`{above}{row.name}`", _words(row.type), default, row.doc))
        if inner.struct and inner.struct not in BLOCK_NAMES and inner.struct.__module__ != core.__name__:
            found += _crd_rows(inner.struct, f"{above}{row.name}{'[]' if row.type.items else ''}.")
    return found


def _crd(struct: type) -> str:
    return _table(("field of `spec`", "type", "default", "meaning"), _crd_rows(struct))


def _blocks() -> str:
    found = []
    for block in BLOCKS:
        base = next((BLOCK_NAMES[base] for base in block.__mro__[1:] if base in BLOCK_NAMES), "")
        own = [(BLOCK_NAMES[block], *row) for row in _crd_rows(block)]
        found += [(BLOCK_NAMES[block], f"all of {base}", "", "", "")] * bool(base) + own
    return _table(("block", "field", "type", "default", "meaning"), found)


def _does(struct: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Each field, and what this version does with it."""
    parts = field_support.parts(struct)
    return [(f"`{one.path}`", f"{one.does}{f': {one.says}' if one.says else ''}") for one in parts]


def _provided() -> str:
    """What this version does with each field, then what depends on another one."""
    found: list[tuple[str, ...]] = []
    for kind, struct in (("ClusterPolicy", ClusterPolicySpec), ("NVIDIADriver", NVIDIADriverSpec)):
        found += [(kind, *row) for row in _does(struct)]
    found += [("ClusterPolicy", row.field, f"{row.when}: {row.does}") for row in ignored.CONDITIONAL]
    return _table(("kind", "field of `spec`", "what this version does with it"), found)


def _runtime_flags() -> str:
    return _options(
        (*PLACE_FLAGS, *WANTED_FLAGS, *RESTART_FLAGS),
        lambda row: "-" if row.default == USUAL else _default(row.default),
    )


def _modes() -> str:
    modes = [mode_named(name) for name in MODULES]
    return _table(
        ("mode", "kind", "devices"),
        [(f"`{mode.name}`", f"`{mode.vendor}/{mode.device_class}`", mode.help) for mode in modes],
    )


def _engines() -> str:
    rows = [
        (row.flavour, f"`{row.config}`", f"`{row.drop_in}`" if row.drop_in else "-", f"`{row.socket}`")
        for row in places.ROWS
    ]
    return _table(("found", "config", "kgpu's own file", "socket"), rows)


# Setting of config.toml -> what it means to kgpu; the others are read, checked and written, and have no effect.
CONFIG_MEANS = {
    "nvidia-container-cli.root": "the driver root of `cdi generate` where `--driver-root` is not given",
    "disable-require": "NRI plugin: `NVIDIA_REQUIRE_*` are not checked",
    "swarm-resource": "NRI plugin: these variables count in place of `NVIDIA_VISIBLE_DEVICES`",
    "supported-driver-capabilities": "NRI plugin: a container that asks for another capability is refused",
    "accept-nvidia-visible-devices-envvar-when-unprivileged": "NRI plugin: false means that no variable is heard",
    "accept-nvidia-visible-devices-as-volume-mounts": "NRI plugin: false, where it is written, means no mount is heard",
}


def _toolkit_config() -> str:
    rows = []
    for name, means in CONFIG_MEANS.items():
        default = BY_NAME[name].default
        rows.append((f"`{name}`", "-" if default in (None, "", ()) else f"`{toml(default)}`", means))
    return _table(("key", "default", "meaning here"), rows)


def _toolkit_config_rest() -> str:
    tables: dict[str, list[str]] = {}
    for key in KEYS:
        if key.name not in CONFIG_MEANS:
            table, _, name = key.name.rpartition(".")
            tables.setdefault(table, []).append(f"`{name}`")
    rows = [(f"`{table}`" if table else "the file itself", ", ".join(names)) for table, names in tables.items()]
    return _table(("table", "keys without effect"), rows)


def _xids() -> str:
    rows = []
    for code, row in xids().items():
        what = guidance(code)
        linked = "" if not row.linked else "yes" if row.linked == 1 else f"from {row.linked}"
        rows.append(
            (str(code), f"{row.what} (`{row.mnemonic}`)", WORDS[what.action], str(row.immediate), str(row.investigate),
             " ".join(row.products), linked)
        )  # fmt: skip
    return _table(("Xid", "meaning", "kgpu", "NVIDIA, at once", "NVIDIA, if it comes again", "on", "own verdict"), rows)


def _sxids() -> str:
    rows = [(str(code), row.what, row.kind, WORDS[switch_guidance(code).action]) for code, row in sxids().items()]
    return _table(("SXid", "meaning", "class", "kgpu"), rows)


def _amdgpu_lines() -> str:
    return _table(("key", "meaning", "kgpu"), [(f"`{row.key}`", row.what, WORDS[row.action]) for row in AMDGPU_LINES])


def _buckets() -> str:
    rows = [(f"`{bucket}`" if bucket else "none", WORDS[one.action], one.advice) for bucket, one in GUIDANCE.items()]
    return _table(("bucket", "kgpu", "advice"), rows)


def _recovery() -> str:
    rows = [
        (str(number), word, WORDS[RECOVERY[word].action] if word in RECOVERY else "nothing to do")
        for number, word in RECOVERY_ACTIONS.items()
    ]
    return _table(("value", "the driver asks for", "kgpu"), rows)


def _health_default(row: Setting) -> str:
    if row.key.startswith("times.") or row.key.endswith(("Window", ".window")):
        return f"{row.default:g}s"
    return "-" if row.default in (frozenset(), {}) else _default(row.default)


def _exporter_metrics() -> str:
    rows = []
    for field in all_fields():
        modern = field.modern
        new = f" [`{modern.name}`{f', {modern.unit}' if modern.unit else ''}]" if modern else ""
        usual = "yes" if field.default else "+" if field.extra else "in c" if field.default_in_c else ""
        rows.append((f"`{field.name}`{new}", str(field.kind), field.unit, str(field.scope), usual, field.help))
    return _table(("metric", "type", "unit", "per", "usual", "meaning"), rows)


def _vendor_metrics(made: Mapping[str, tuple[str, str]], table: Iterable[VendorRow]) -> str:
    """``made`` are the metrics that no reading gives: of what they are, and their help."""
    rows: list[tuple[str, ...]] = [(f"`{name}`", "", of, "", f"{text}.") for name, (of, text) in made.items()]
    shown: dict[str, tuple[str, ...]] = {}
    for row in table:
        labels = [*(name for name, _ in row.labels), *([row.index] if row.index else [])]
        shown.setdefault(row.name, (f"`{row.name}`", row.unit, str(row.of), _codes(labels), f"{row.help}."))
    rows += shown.values()
    return _table(
        ("metric", "unit", "per", "labels", "meaning"), [tuple("" if c == "-" else c for c in row) for row in rows]
    )


def _metrics_amd() -> str:
    made = {name: ("node" if name == rocm.NODES else "partition", text) for name, text in rocm.MADE.items()}
    return _vendor_metrics(made, rocm.ROWS)


def _metrics_gaudi() -> str:
    return _vendor_metrics({name: ("GPU", text) for name, text in gaudi.MADE.items()}, gaudi.ROWS)


def _metrics_node() -> str:
    return _table(("metric", "meaning"), [(f"`{row.name}`", row.help) for row in METRICS])


def _metrics_operator() -> str:
    rows = [*((f"{PREFIX}{name}", *rest) for name, *rest in ROWS), *OWN_ROWS]
    rows += [(name, kind, said) for name, (kind, said) in {**operations_metrics.HEADS, **notifier.HEADS}.items()]
    return _table(("metric", "type", "meaning"), [(f"`{name}`", kind, said) for name, kind, said in rows])


def _support() -> str:
    return _table(
        ("what", "versions", "otherwise"),
        [
            (one.what, one.listed or "none", one.remedy)
            for one in (support.KUBERNETES, *support.RUNTIMES.values(), *support.NRI.values(),
                        *support.DRIVER_SYSTEMS.values())
        ],
    )  # fmt: skip


def _sharing_ways() -> str:
    rows = [(row.title, *(row.of(way) for way in SharingWay)) for row in SHARING_FACTS]
    return _table(("", *(way.words for way in SharingWay)), rows)


def _sharing_needs() -> str:
    rows = [(row.title, ", else ".join(way.words for way in row.ways), f"`{row.key}`") for row in SHARING_NEEDS]
    return _table(("what matters most", "take", "`--need`"), rows)


def _usage_states() -> str:
    rows = [(f"`{row.state}`", row.means, row.payer, row.action or "-") for row in STATES]
    return _table(("state", "means", "its time is", "what follows"), rows)


def _usage_prices() -> str:
    rows = [
        (
            " ".join(part for part in (row.provider, row.region) if part) or "-",
            f"`{row.instance_type or row.product or '(default)'}`", row.capacity_type or "-",
            *("" if amount is None else f"{amount / 1e6:.3f}" for amount in (row.per_node_hour, row.per_gpu_hour)),
            row.date, row.source,
        )
        for row in list_prices().rows
    ]  # fmt: skip
    return _table(("where", "type or model", "capacity", "USD a node's hour", "a GPU's hour", "date", "source"), rows)


def _usage_guards() -> str:
    return _table(("", "guard", "passes where"), ((str(row.number), row.name, row.means) for row in GUARDS))


def _usage_owners() -> str:
    return _table(("owner", "what is done"), ((row.owner, row.action) for row in OWNER_ROWS))


GENERATED: Mapping[str, Callable[[], str]] = {
    "usage-states": _usage_states,
    "usage-prices": _usage_prices,
    "vendors": lambda: _table(vendor_table.head(), vendor_table.lines()),
    "device-plugin-flags": lambda: _options(FLAGS),
    "config-manager-flags": lambda: _options(MANAGER_FLAGS),
    "mig-manager-flags": lambda: _options((*MIG_PROCESS, *MIG_FLAGS, *MIG_WITHOUT)),
    "device-config-flags": lambda: _options(DEVICE_CONFIG_FLAGS),
    "labels-flags": lambda: _options(OPTIONS),
    "profiles": _profiles,
    "settings": _settings,
    "faults": _faults,
    "loads": _loads,
    "scenarios": _scenarios,
    "samples": _samples,
    "conformance-skips": _conformance_skips,
    "conformance-sigs": _conformance_sigs,
    "clusterpolicy": lambda: _crd(ClusterPolicySpec),
    "nvidiadriver": lambda: _crd(NVIDIADriverSpec),
    "nodeoperation": lambda: _crd(NodeOperationSpec),
    "usage-policy": lambda: _crd(GPUUsagePolicySpec),
    "usage-override": lambda: _crd(GPUUsageOverrideSpec),
    "usage-guards": _usage_guards,
    "usage-owners": _usage_owners,
    "usage-template-fields": lambda: _table(
        ("field", "what"), ((f"`{{{row.name}}}`", row.means) for row in TEMPLATE_FIELDS)
    ),
    "deviceconfig": lambda: _table(("field of `spec`", "what this version does with it"), _does(DeviceConfigSpec)),
    "crd-blocks": _blocks,
    "fields-provided": _provided,
    "xids": _xids,
    "sxids": _sxids,
    "amdgpu-lines": _amdgpu_lines,
    "doctor-rules": _doctor_rules,
    "buckets": _buckets,
    "recovery-actions": _recovery,
    "health-config": lambda: _options(health.ROWS, _health_default),
    "health-sources": lambda: _options(HEALTH_SOURCES),
    "exporter-flags": lambda: _options(exporter.OPTIONS),
    "exporter-without": lambda: _options(exporter_flags.WITHOUT, lambda _row: "-"),
    "exporter-metrics": _exporter_metrics,
    "metrics-amd": _metrics_amd,
    "metrics-gaudi": _metrics_gaudi,
    "metrics-node": _metrics_node,
    "metrics-operator": _metrics_operator,
    "cdi-flags": lambda: _options(CDI_OPTIONS, lambda _row: "-"),
    "cdi-modes": _modes,
    "runtime-flags": _runtime_flags,
    "engine-places": _engines,
    "sharing-needs": _sharing_needs,
    "sharing-ways": _sharing_ways,
    "support": _support,
    "toolkit-variables": lambda: _options(toolkit.OPTIONS),
    "toolkit-without": lambda: _options(toolkit.WITHOUT, lambda _row: "-"),
    "nri-options": lambda: _options((nri.ENABLED, *nri.ROWS)),
    "agent-options": lambda: _options(AGENT_OPTIONS),
    "driver-manager-variables": lambda: _table(
        ("environment", "default", "meaning"),
        ((f"`{row.envs[0]}`", _default(row.default), row.help) for row in DRIVER_MANAGER_SETTINGS),
    ),
    "operator-options": lambda: _options((*OPERATOR_OPTIONS, LEADER_ELECT)),
    "cleanup-options": lambda: _options(CLEANUP_OPTIONS),
    "validator-variables": lambda: _options((*validator.VARIABLES, *validator.IDLE)),
    "validator-flags": lambda: _options(VALIDATOR_FLAGS),
    "device-nodes-flags": lambda: _options(NODE_FLAGS),
    "device-links-flags": lambda: _options(LINK_FLAGS),
    "toolkit-config": _toolkit_config,
    "toolkit-config-rest": _toolkit_config_rest,
}


def render(text: str) -> str:
    """The document with every marked part made anew."""

    def part(hit: re.Match[str]) -> str:
        return f"<!-- generated: {hit[1]} -->\n{GENERATED[hit[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- generated: ([a-z-]+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def main() -> int:
    stale = []
    for path in sorted(path for folder in FOLDERS for path in (DOCS / folder).glob("*.md")):
        old = path.read_text()
        new = render(old)
        if new != old:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(new)
    if stale and "--check" in sys.argv:
        print("not current; run `make docs`:", *stale)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
