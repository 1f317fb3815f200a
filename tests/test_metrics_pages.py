"""The pages of metrics carry what docs/reference/metrics.md says, and nothing else: nobody has to log in to read them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse_text

from kgpu.discovery.features.metrics import WorkerFigures
from kgpu.discovery.master.metrics import MasterFigures
from kgpu.dra.metrics import DraMetrics
from kgpu.exporter import computed as exporter_computed
from kgpu.exporter import self_metrics
from kgpu.exporter.counters import CountedMetric
from kgpu.exporter.field_table import all_fields
from kgpu.exporter.fields import spell
from kgpu.exporter.labels import PodLabels, Style, Texts
from kgpu.exporter.model import Generation, PlanInput, PodFacts, Unit, Users
from kgpu.exporter.plan import plan
from kgpu.exporter.render import render
from kgpu.exporter.settings import ExporterSettings, Pods, Virtual
from kgpu.exporter.windows import ClockWindow, Xids
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kubelet.pod_resources import DeviceClaim
from kgpu.operator.metrics import OperatorFigures
from kgpu.operator.plan import plan as plan_operator
from kgpu.validator.metrics import SeenStatus
from kgpu.validator.metrics import render as render_node
from tests.exporter.made import gpu, holding, inventory, look, partition, uuid
from tests.operator.world import SETTINGS, healthy_node, world

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
PAGE = (REFERENCE / "metrics.md").read_text()
EXPORTER = (REFERENCE / "exporter.md").read_text()
OF_THE_POD = {"app_kubernetes_io_name"}
_FIELDS = {name for field in all_fields() for name in (field.name, *(spell(field, one).name for one in Generation))}


def rows(text: str, section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    part = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if not line.startswith(("| ---", "| label |", "| metric"))]


def named(cell: str) -> set[str]:
    return {word.partition("{")[0] for word in re.findall(r"`([^`]+)`", cell)}


def samples(text: str) -> tuple[set[str], set[str]]:
    """The names of a page's metrics as they stand there, and by Prometheus' own parser those of their labels."""
    names = set(re.findall(r"^[a-zA-Z_:][\w:]*", text, re.MULTILINE))
    return names, {label for family in parse_text(text) for one in family.samples for label in one.labels}


def everything(generation: Generation) -> PlanInput:
    """A node on which each label has a reason to be there."""
    part = partition(0, 7)
    gpus = (gpu(0, part), gpu(1))
    xids, clocks = Xids(), ClockWindow()
    xids.add(9.0, Unit(uuid(1)), 79)
    clocks.add(8.0, Unit(uuid(1)), 0)
    clocks.add(9.0, Unit(uuid(1)), 0xFFFF)
    readings = {Unit(uuid(1)): {"p2p_status": "0:1", "last_xid": 79, "power_w": 3.0, "serial": "1234"}}
    counts = {**xids.samples(10.0, [Unit(uuid(0))]), **clocks.samples(10.0)}
    counts |= {
        "DCGM_EXP_GPU_HEALTH_STATUS": exporter_computed.health([GpuVerdict(uuid=uuid(1))]),
        "DCGM_EXP_P2P_STATUS": exporter_computed.p2p(inventory(*gpus), readings),
    }
    seen = look(*gpus)
    values = {unit: {**found, **readings.get(unit, {})} for unit, found in seen.now.values.items()}
    values |= {Unit(uuid(1), link=0): {"link_replays": 1.0}, Unit("", cpu=0): {"cpu_power_w": 1.0}}
    driver, pool = "gpu.nvidia.com", "n1"
    return replace(
        seen,
        now=replace(seen.now, values=values),
        computed=counts,
        xid_texts={79: "GPU has fallen off the bus"},
        jobs={Unit(uuid(1)): ("job-1",)},
        pods={("team", name): PodFacts(uid="u-1", labels={"app.kubernetes.io/name": "x"}) for name in ("a", "b")},
        claimed={(driver, pool, "gpu-0-mig"): part.uuid},
        holdings=(
            holding("a", f"{uuid(1)}::0"),
            holding("b", "gpu-0-mig", resource=driver, claim=DeviceClaim("c", pool)),
        ),
    )


def test_the_gpus_page_has_the_documented_labels_and_metrics() -> None:
    labels_told = {name for cells in rows(PAGE, "GPUs") for cell in (cells[0], cells[2]) for name in named(cell)}
    metrics_told = {
        name for cells in rows(EXPORTER, "Metrics about the exporter and its devices") for name in named(cells[0])
    }
    names: set[str] = set()
    labels: set[str] = set()
    for generation in Generation:
        for old in (False, True):
            for pods in Pods:
                counters = tuple(
                    CountedMetric(one, one.kind(generation), field.help)
                    for field in all_fields()
                    for one in [spell(field, generation)]
                )
                settings = ExporterSettings(
                    counters=counters, style=Style(generation=generation, hostname="n", old_namespace=old), pods=pods,
                    pod_uid=True, pod_labels=PodLabels(), virtual_gpus=Virtual.ALWAYS,
                )  # fmt: skip
                seen = everything(generation)
                told = [
                    *plan(seen, settings).families,
                    *self_metrics.verdict_families(
                        [GpuVerdict(uuid=uuid(1), reason="Xid", action="drain")], seen, settings, Texts()
                    ),
                    *self_metrics.users_families(
                        Users(failures={"holdings": "x"}, missing={("device", "unknown-id"): 1}), Texts()
                    ),
                    self_metrics.series_family(1, 0, Texts()),
                ]
                found = samples(render(told))
                names |= found[0]
                labels |= found[1]
    assert {name for name in names if name not in _FIELDS} <= metrics_told
    assert {name for name in labels if name not in _FIELDS} - OF_THE_POD - labels_told == set()
    # The other way round: what the page names is there, so that this test sees what it should.
    alone = {"cpu", "nvlink", "gpu_uuid", "model_name", "source", "version"}
    missing = {name for name in labels_told if not name.startswith(("--", "DCGM_", "kgpu_"))} - labels - alone
    assert missing == set()


def test_the_node_page_has_the_documented_metrics() -> None:
    names, labels = samples(render_node(SeenStatus(present=frozenset(), report=None, since=1.0), "n"))
    assert names == {name for cells in rows(PAGE, "Node status") for name in named(cells[0])}
    assert labels == {"node"}


def test_the_pages_of_node_features_have_the_documented_metrics() -> None:
    master, worker = MasterFigures(), WorkerFigures("n")
    with master.timed("mine"):
        pass
    names, labels = samples(master.text() + worker.text())
    plain = {re.sub("_(bucket|sum|count)$", "", name) for name in names}
    cells = rows(PAGE, "Node features")
    assert plain == {name for row in cells for name in named(row[0])}
    assert labels == {name for row in cells for name in named(row[1])}


def test_the_page_of_claims_has_the_documented_metrics() -> None:
    figures = DraMetrics(driver="gpu.nvidia.com", node="n")
    for operation in ("prepare", "unprepare"):
        figures.failed(operation)
    names, labels = samples(figures.text(()))
    cells = rows(PAGE, "Claims")
    parts = {"nvidia_dra_request_duration_seconds": ("_bucket", "_sum", "_count")}
    told = {f"{name}{end}" for row in cells for name in named(row[0]) for end in parts.get(name, ("",))}
    assert names == told
    assert labels == {"driver"} | {label for row in cells for label in named(row[1])}
    abouts = re.findall(r"^# HELP (\S+) (.*)$", figures.text(()), re.MULTILINE)
    assert {row[0].strip("`"): row[2] for row in cells} == dict(abouts)


def test_the_operators_page_has_the_documented_metrics() -> None:
    figures = OperatorFigures()
    figures.wrote("DaemonSet")
    told = {name for cells in rows(PAGE, "Operator") for name in named(cells[0])}
    figures.passed(plan_operator(world(healthy_node()), SETTINGS).metrics)
    assert samples(figures.text())[0] <= told
    assert samples(figures.text())[1] == {"kind"}
