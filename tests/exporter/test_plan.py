"""The plan: labels and order as users know them, every user shown, and one bad value never takes its neighbours along."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.exporter.counters import CountedMetric, default_counters, parse_counters
from kgpu.exporter.labels import Style, read_allowed
from kgpu.exporter.model import ComputedSample, Generation, PodFacts, Tick, Unit, Users
from kgpu.exporter.plan import PlanMemory, plan
from kgpu.exporter.render import render
from kgpu.exporter.self_metrics import ExporterFigures
from kgpu.exporter.settings import ExporterSettings, Pods, Virtual
from kgpu.exporter.ticks import Ticks
from kgpu.hw.port import HardwareFinding, Problem, Reading
from kgpu.kubelet.pod_resources import DeviceClaim
from tests.budget import tries
from tests.exporter.made import DRIVER, gpu, holding, inventory, look, mig_uuid, partition, read_both, series, uuid

POWER, USED, BUSY, XID = (f"DCGM_FI_DEV_{name}" for name in ("POWER_USAGE", "FB_USED", "GPU_UTIL", "XID_ERRORS"))
STYLE = Style(hostname="node-1")


def counters(*lines: str) -> tuple[CountedMetric, ...]:
    return parse_counters("\n".join(lines)).rows


def wanted(*lines: str, **more: object) -> ExporterSettings:
    chosen = counters(*lines) if lines else default_counters()
    return ExporterSettings(**{"counters": chosen, "style": STYLE, **more})


def test_the_line_is_exactly_as_the_replaced_exporter_writes_it():
    asked = look(gpu(2), holdings=(holding("train-0", uuid(2)),))
    text = render(plan(asked, wanted(f"{POWER}, gauge, Power.", "DCGM_FI_DRIVER_VERSION, label, V")).families)
    assert text.startswith(
        "# HELP DCGM_FI_DEV_POWER_USAGE Power.\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="2",UUID="{uuid(2)}",pci_bus_id="00000000:1D:00.0",device="nvidia2",'
        f'modelName="NVIDIA H100 80GB HBM3",hostname="node-1",DCGM_FI_DRIVER_VERSION="{DRIVER}",container="main",'
        'namespace="team",pod="train-0"} 201.000000\n'
    )


@pytest.mark.parametrize(
    ("style", "there", "missing"),
    [
        (Style(hostname="n", generation=Generation.A), {"Hostname", "UUID", "pod"}, {"hostname"}),
        (Style(hostname="n"), {"hostname", "UUID", "pod"}, {"Hostname"}),
        (Style(), {"UUID"}, {"hostname", "Hostname"}),
        (Style(old_namespace=True), {"uuid", "pod_name", "pod_namespace", "container_name"}, {"UUID", "pod"}),
    ],
)
def test_labels_by_generation_and_style(style, there, missing):
    asked = look(gpu(), holdings=(holding("p", uuid(0)),))
    ((labels, _),) = series(plan(asked, wanted(f"{POWER}, gauge, P", style=style)), POWER)
    assert there <= set(labels)
    assert not missing & set(labels)


def test_an_idle_gpu_has_no_pod_labels():
    ((labels, _),) = series(plan(look(gpu()), wanted()), POWER)
    assert not {"pod", "namespace", "container"} & set(labels)


def test_every_pod_on_a_shared_gpu_is_shown_and_sums_can_be_right():
    held = tuple(holding(f"p{n}", f"{uuid(0)}::{n}", resource="nvidia.com/gpu.shared") for n in (1, 0, 2))
    for virtual, shown in ((Virtual.NEVER, ["p0", "p1", "p2"]), (Virtual.AUTO, [None, "p0", "p1", "p2"])):
        rows = series(plan(look(gpu(), holdings=held), wanted(virtual_gpus=virtual)), POWER)
        assert [labels.get("pod") for labels, _ in rows] == shown
        assert sum(value for labels, value in rows if not labels.get("shared_copy")) == 1.0


def test_two_shares_of_one_container_are_one_series():
    asked = look(gpu(), holdings=(holding("p", f"{uuid(0)}::0", f"{uuid(0)}::1"),))
    found = [(row.get("pod"), row.get("vgpu")) for row, _ in series(plan(asked, wanted()), POWER)]
    assert found == [(None, None), ("p", "0")]
    assert len(series(plan(asked, wanted(virtual_gpus=Virtual.NEVER)), POWER)) == 1
    assert len(series(plan(asked, wanted(virtual_gpus=Virtual.ALWAYS)), POWER)) == 3


def test_t32_a_shared_gpus_pods_have_their_own_values_without_being_asked_and_a_whole_gpus_has_the_devices():
    held = (holding("a", f"{uuid(0)}::0"), holding("b", f"{uuid(0)}::1"), holding("whole", uuid(1)))
    of = {"a": 3.0, "whole": 1.0}
    shares = {
        (Unit(uuid(int(pod == "whole"))), ("team", pod, "main")): {"memory_used_mib": used} for pod, used in of.items()
    }
    planned = plan(look(gpu(0), gpu(1), holdings=held, shares=shares, pods={}), wanted())
    found = [(row["gpu"], row.get("pod"), value, row.get("vgpu")) for row, value in series(planned, USED)]
    assert found == [
        ("0", None, 5.0, None), ("0", "a", 3.0, "0"), ("0", "b", 0.0, "1"), ("1", "whole", 5.0, None)
    ]  # fmt: skip
    off = plan(look(gpu(0), holdings=held[:2], shares=shares), wanted(virtual_gpus=Virtual.NEVER))
    assert {value for _, value in series(off, USED)} == {5.0}


def test_pods_can_be_joined_instead():
    held = (holding("a", f"{uuid(0)}::0"), holding("b", f"{uuid(0)}::1"))
    planned = plan(look(gpu(), holdings=held), wanted(pods=Pods.JOIN))
    assert [labels.get("pod") for labels, _ in series(planned, POWER)] == [None]
    assert [(labels["pod"], value) for labels, value in series(planned, "kgpu_gpu_pod_info")] == [("a", 1), ("b", 1)]


def test_virtual_gpus_have_their_processes_values_and_one_series_of_the_device():
    held = (holding("a", f"{uuid(0)}::0"), holding("b", f"{uuid(0)}::1"))
    shares = {(Unit(uuid(0)), ("team", "a", "main")): {"memory_used_mib": 3.0, "utilization_percent": 7.0}}
    pods = {("team", "a"): PodFacts(uid="u-a")}
    asked = look(gpu(), holdings=held, shares=shares, pods=pods)
    planned = plan(asked, wanted(virtual_gpus=Virtual.ALWAYS))
    found = {
        labels.get("pod"): (value, labels.get("vgpu"), labels.get("pod_uid")) for labels, value in series(planned, USED)
    }
    assert found == {None: (5.0, None, None), "a": (3.0, "0", "u-a"), "b": (0.0, "1", None)}
    assert sum(value for labels, value in series(planned, USED) if not labels.get("shared_copy")) == 5.0
    assert [value for _, value in series(planned, "kgpu_pod_gpu_memory_used_bytes")] == [3 << 20]


def test_a_containers_memory_is_told_once_whatever_it_has_the_device_by():
    held = (
        holding("a", f"{uuid(0)}::0", f"{uuid(0)}::1"),
        holding("a", "g", resource="d", claim=DeviceClaim("c", "n")),
    )
    shares = {(Unit(uuid(0)), ("team", "a", "main")): {"memory_used_mib": 3.0}}
    asked = look(gpu(), holdings=held, shares=shares, claimed={("d", "n", "g"): uuid(0)})
    for chosen in (wanted(), wanted(virtual_gpus=Virtual.ALWAYS)):
        assert [value for _, value in series(plan(asked, chosen), "kgpu_pod_gpu_memory_used_bytes")] == [3 << 20]


def test_pod_labels_pass_by_the_allow_list_and_never_replace_another():
    labels = {"app": "x", "team.io/name": "t", "secret": "s", "pod": "mine", "9lives": "cat", "gpu": "no"}
    asked = look(gpu(), holdings=(holding("p", uuid(0)),), pods={("team", "p"): PodFacts(uid="u", labels=labels)})
    allowed = read_allowed(["^app$, team, ^pod$, 9, gpu"], "x")
    ((found, _),) = series(plan(asked, wanted(pod_labels=allowed, pod_uid=True)), POWER)
    assert (found["app"], found["team_io_name"], found["_9lives"], found["pod_uid"]) == ("x", "t", "cat", "u")
    assert (found["pod"], found["pod_label_pod"], found["gpu"], found["pod_label_gpu"]) == ("p", "mine", "0", "no")
    assert "secret" not in found


def test_a_failing_value_costs_its_own_series_and_is_counted():
    values = {Unit(uuid(n)): {"power_w": 1.0, "memory_used_mib": 1.0} for n in range(2)}
    del values[Unit(uuid(0))]["power_w"]
    values[Unit(uuid(1))]["memory_used_mib"] = "what?"
    failures = {Unit(uuid(0)): {"power_w": "ERROR_TIMEOUT"}}
    planned = plan(
        look(gpu(0), gpu(1), values=values, failures=failures), wanted(f"{POWER}, gauge, P", f"{USED}, gauge, U")
    )
    assert [labels["gpu"] for labels, _ in series(planned, POWER)] == ["1"]
    assert [labels["gpu"] for labels, _ in series(planned, USED)] == ["0"]
    assert planned.errors == {(POWER, "ERROR_TIMEOUT"): 1, (USED, "not-a-number"): 1}
    figures, memory = ExporterFigures(), PlanMemory()
    for _ in range(2):
        figures.count(planned)
    _, lines = read_both(figures.families(memory.texts))
    assert {(labels["field"], labels["reason"]): value for _, labels, value in lines} == {
        (POWER, "ERROR_TIMEOUT"): 2, (USED, "not-a-number"): 2,
    }  # fmt: skip


def test_a_field_that_a_gpu_does_not_have_is_no_error_but_is_told():
    planned = plan(look(gpu()), wanted(f"{BUSY}, gauge, B"))
    assert series(planned, BUSY) == []
    assert planned.errors == {}
    assert series(planned, "kgpu_exporter_field_absent") == [({"field": BUSY, "reason": "absent"}, 1.0)]


def test_a_lost_gpu_is_down_and_the_others_go_on():
    lost = HardwareFinding(subject=uuid(0), problem=Problem.LOST, what="w", expected="e", remedy="t")
    values = {Unit(uuid(1)): {"power_w": 5.0}}
    planned = plan(look(gpu(0, findings=(lost,)), gpu(1), values=values), wanted(f"{POWER}, gauge, P"))
    assert [(labels["gpu"], value) for labels, value in series(planned, POWER)] == [("1", 5.0)]
    assert [(labels["gpu"], value) for labels, value in series(planned, "kgpu_gpu_up")] == [("0", 0), ("1", 1)]
    assert planned.errors == {}


@pytest.mark.parametrize("problem", [Problem.NEEDS_RESET, Problem.UNPROVEN, Problem.UNREADABLE])
def test_a_gpu_that_can_be_read_is_up_whatever_is_found(problem):
    bad = HardwareFinding(subject=uuid(0), problem=problem, what="w", expected="e", remedy="t")
    planned = plan(look(gpu(0, findings=(bad,))), wanted(f"{POWER}, gauge, P", f"{BUSY}, gauge, B"))
    assert [value for _, value in series(planned, "kgpu_gpu_up")] == [1]
    assert [value for _, value in series(planned, POWER)] == [1.0]
    assert series(planned, "kgpu_exporter_field_absent") == [({"field": BUSY, "reason": "absent"}, 1.0)]


@pytest.mark.parametrize("problem", [Problem.LOST, Problem.HUNG, Problem.CRASHED, Problem.MISSING])
def test_a_gpu_that_can_not_be_read_is_down_and_its_pods_are_told(problem):
    bad = HardwareFinding(subject=uuid(0), problem=problem, what="w", expected="e", remedy="t")
    slices = (partition(0, 1), partition(0, 2))
    held = (holding("a", uuid(0)), holding("m", mig_uuid(0, 2)), holding("b", uuid(1)))
    values = {Unit(uuid(1)): {"power_w": 5.0}}
    for parts, names in (((), [("a", None)]), (slices, [("a", None), ("m", "2")])):
        asked = look(gpu(0, *parts, findings=(bad,)), gpu(1), values=values, holdings=held)
        planned = plan(asked, wanted(f"{POWER}, gauge, P"))
        assert [(labels["gpu"], value) for labels, value in series(planned, "kgpu_gpu_up")] == [("0", 0), ("1", 1)]
        told = [labels for labels, _ in series(planned, "kgpu_gpu_pod_info")]
        assert [(labels["pod"], labels.get("GPU_I_ID")) for labels in told] == names
        assert [labels["pod"] for labels, _ in series(planned, POWER)] == ["b"]


def test_a_gpu_of_which_every_reading_fails_is_down_and_lacks_nothing():
    bad = HardwareFinding(subject=uuid(0), problem=Problem.UNREADABLE, what="error 999", expected="e", remedy="t")
    ticks = Ticks(wanted(f"{POWER}, gauge, P"))
    ticks.read(1.0, inventory(gpu(0, findings=(bad,)), gpu(1)), (Reading(uuid=uuid(1), values={"power_w": 5.0}),))
    outcome = ticks.families(1.0, Users())
    assert [(labels["gpu"], value) for labels, value in series(outcome, POWER)] == [("1", 5.0)]
    assert [(labels["gpu"], value) for labels, value in series(outcome, "kgpu_gpu_up")] == [("0", 0), ("1", 1)]
    assert series(outcome, "kgpu_exporter_field_absent") == []
    assert series(outcome, "kgpu_exporter_field_errors_total") == [({"field": POWER, "reason": "unreadable"}, 1.0)]


def test_without_the_kubelet_metrics_flow_and_it_is_told():
    planned = plan(look(gpu(), holdings=None), wanted())
    assert len(series(planned, POWER)) == 1
    assert [value for _, value in series(planned, "kgpu_exporter_pods_known")] == [0]


def test_rates_come_from_two_ticks_and_start_at_zero():
    name = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
    first, later = ({Unit(uuid(0)): {"nvlink_data_kib": number}} for number in (1000.0, 5_001_000.0))
    asked = look(gpu(), values=later)
    assert [value for _, value in series(plan(asked, wanted()), name)] == [0]
    before = Tick(at=8.0, values=first)
    again = look(gpu(), values=later, before=before)
    assert [value for _, value in series(plan(again, wanted()), name)] == [2500]
    reset = look(gpu(), values=first, before=Tick(at=8.0, values=later))
    assert [value for _, value in series(plan(reset, wanted()), name)] == [0]


def test_the_second_source_is_used_where_the_first_is_not_there():
    name = "DCGM_FI_PROF_PCIE_TX_BYTES"
    values = {Unit(uuid(0)): {"pcie_tx_bytes": 3e6}}
    asked = look(gpu(), values=values, before=Tick(at=9.0, values={Unit(uuid(0)): {"pcie_tx_bytes": 1e6}}))
    assert [value for _, value in series(plan(asked, wanted()), name)] == [2e6]


def test_the_last_xid_has_its_code_and_text_and_counts_stand_beside_it():
    values = {Unit(uuid(0)): {"last_xid": 79}, Unit(uuid(1)): {"power_w": 1.0}}
    made = {"DCGM_EXP_XID_ERRORS_TOTAL": (ComputedSample(Unit(uuid(0)), (("xid", "79"),), 3.0),)}
    asked = look(gpu(0), gpu(1), values=values, computed=made, xid_texts={79: "GPU has fallen off the bus"})
    planned = plan(asked, wanted())
    ((labels, value),) = series(planned, XID)
    assert (labels["gpu"], labels["err_code"], labels["err_msg"], value) == (
        "0",
        "79",
        "GPU has fallen off the bus",
        79,
    )
    (total,) = [family for family in planned.families if family.name == "DCGM_EXP_XID_ERRORS_TOTAL"]
    assert [sample.value for sample in total.samples] == ["3"]
    assert 'xid="79"' in total.samples[0].labels


def test_batch_jobs_are_labels():
    asked = look(gpu(), jobs={Unit(uuid(0)): ("7", "8")})
    assert [labels["hpc_job"] for labels, _ in series(plan(asked, wanted()), POWER)] == ["7", "8"]


def test_a_claims_device_is_found_by_what_the_driver_published():
    held = (holding("p", "gpu-0", resource="gpu.nvidia.com", claim=DeviceClaim("mine", "n")),)
    asked = look(gpu(), holdings=held, claimed={("gpu.nvidia.com", "n", "gpu-0"): uuid(0)})
    ((labels, _),) = series(plan(asked, wanted()), POWER)
    assert labels["pod"] == "p"
    assert {key: value for key, value in labels.items() if key.startswith("dra_")} == {
        "dra_claim_name": "mine", "dra_claim_namespace": "team", "dra_driver_name": "gpu.nvidia.com",
        "dra_pool_name": "n", "dra_device_name": "gpu-0",
    }  # fmt: skip


def test_nvlinks_and_cpus_have_labels_of_their_own():
    fields = counters("DCGM_FI_DEV_CPU_TEMP_CURRENT, gauge, T", "DCGM_FI_DEV_NVLINK_COUNT_TX_PACKETS, counter, P")
    link = {Unit(uuid(0), link=3): {"nvlink_tx_packets": 7}}
    values = {Unit("", cpu=1): {"cpu_temperature_c": 50.5}, Unit(uuid(0)): {}, **link}
    planned = plan(look(gpu(), values=values), ExporterSettings(counters=fields, style=STYLE))
    text = render(planned.families)
    assert (
        f'TX_PACKETS{{nvlink="3",gpu="0",gpu_uuid="{uuid(0)}",pci_bus_id="00000000:1B:00.0",device="nvidia0",' in text
    )
    assert 'model_name="NVIDIA H100 80GB HBM3",hostname="node-1"} 7\n' in text
    assert series(planned, "DCGM_FI_DEV_CPU_TEMP_CURRENT") == [({"cpu": "1", "hostname": "node-1"}, 50.5)]


def test_too_many_series_leave_whole_metrics_out_and_say_so():
    planned = plan(look(*map(gpu, range(8))), wanted(series_limit=20))
    assert planned.series <= 20
    (told,) = planned.advice
    assert "more than 20 series" in told.why
    assert all(len(family.samples) in {0, 1, 2, 8} or family.name.startswith("kgpu") for family in planned.families)
    dropped = {labels["state"]: value for labels, value in series(planned, "kgpu_exporter_series")}
    assert dropped["dropped"] > 0


def test_what_is_remembered_changes_nothing():
    memory = PlanMemory()
    looks = [
        look(gpu(0), gpu(1), holdings=(holding("a", uuid(0)),)),
        look(gpu(0), gpu(1), holdings=(holding("b", uuid(1)),)),
        look(gpu(1)),
        look(gpu(0, partition(0, 7)), holdings=(holding("c", mig_uuid(0, 7)),)),
    ]
    for asked in [*looks, *looks]:
        assert plan(asked, wanted(), memory) == plan(asked, wanted())


NUMBERS = st.one_of(st.floats(), st.integers(-(2**70), 2**70), st.text(max_size=5))
READINGS = st.dictionaries(
    st.sampled_from(sorted({source.reading for row in default_counters() for source in row.spelled.field.sources})),
    NUMBERS,
    max_size=8,
)
NAMES = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)


@tries(60)
@given(READINGS, READINGS, st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3)), max_size=5), st.sampled_from(Virtual))
def test_whatever_is_read_the_text_can_be_read_and_series_are_unique(first, second, pods, virtual):
    values = {Unit(uuid(0)): first, Unit(uuid(1)): {**second, "driver_version": "1"}}
    held = tuple(holding(pod, f"{uuid(n % 2)}::{n}", namespace=space) for pod, space, n in pods)
    asked = look(gpu(0), gpu(1), values=values, holdings=held, before=Tick(at=1.0, values=values))
    planned = plan(asked, wanted(virtual_gpus=virtual))
    for samples in read_both(planned.families):
        keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
        assert len(keys) == len(set(keys))
        assert all(math.isfinite(value) for _, _, value in samples)
