"""What a Gaudi node's page has under the names of Gaudi's metric exporter: a row per metric, labels, pods, the port."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kgpu.exporter.config import resolve
from kgpu.exporter.model import PlanInput, Tick, Unit
from kgpu.exporter.reload import vendor_page
from kgpu.exporter.render import render
from kgpu.exporter.settings import ExporterSettings
from kgpu.exporter.vendors.gaudi.page import LABELS, PORT, GaudiPage
from kgpu.exporter.vendors.gaudi.rows import ROWS
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.gaudi import hlml_child
from kgpu.hw.gaudi.facts import GaudiFacts
from kgpu.hw.gaudi.telemetry import reading
from kgpu.hw.port import Accelerator, Inventory
from kgpu.hw.simulator import operate, processes
from tests.exporter.made import holding
from tests.exporter.serving import serving
from tests.exporter.test_promtool import KEPT, check
from tests.exporter.vendors.amd.made import series
from tests.monitoring.conftest import prometheus_bin  # noqa: F401 - a fixture
from tests.ports import free_port

NAMES = ["clock_soc_mhz", "clock_soc_max_mhz", "clock_ic_max_mhz", "clock_mme_max_mhz", "clock_tpc_max_mhz", "memory_free_bytes", "memory_used_bytes", "memory_total_bytes", "power_mW", "power_default_limit_mW", "energy", "temperature_onboard", "temperature_onchip", "temperature_threshold_gpu", "temperature_threshold_memory", "temperature_threshold_shutdown", "temperature_threshold_slowdown", "pci_link_speed", "pci_link_width", "pcie_receive_throughput", "pcie_transmit_throughput", "pcie_rx", "pcie_tx", "pcie_replay_count", "ecc_feature_mode", "pending_rows_state", "pending_rows_with_single_bit_ecc_errors", "pending_rows_with_double_bit_ecc_errors", "nic_port_status", "utilization", "device_config"]  # fmt: skip


def card(index: int) -> Accelerator:
    return Accelerator(
        vendor="gaudi", index=index, uuid=f"AN{index}", serial=f"AN{index}", name="Intel Gaudi 3", minor=index
    )


def page(*cards: Accelerator, more=None, said=None, **figures: int) -> str:
    """All cards say the same."""
    values = reading("", GaudiFacts("", values={**figures, **(said or {})})).values
    units = [Unit(one.uuid) for one in cards]
    look = PlanInput(
        inventory=Inventory(vendor="gaudi", driver_version="1.23", accelerators=cards),
        now=Tick(values=dict.fromkeys(units, values), answered=frozenset(units)), **(more or {}),
    )  # fmt: skip
    return render(GaudiPage(own_port=False).plan(look, ExporterSettings(), ()).families)


def test_every_name_of_the_replaced_exporter_is_there() -> None:
    """But for ``kube_info``, which is about the exporter's own pod."""
    there = {row.name for row in ROWS} | {"habanalabs_device_config"}
    assert there == {f"habanalabs_{name}" for name in NAMES}


@pytest.mark.parametrize(
    ("figure", "value", "name", "expected"),
    [
        ("clock_soc", 400, "clock_soc_mhz", 400), ("clock_soc_highest", 1600, "clock_soc_max_mhz", 1600),
        ("clock_ic_highest", 7, "clock_ic_max_mhz", 7), ("clock_mme_highest", 8, "clock_mme_max_mhz", 8),
        ("clock_tpc_highest", 9, "clock_tpc_max_mhz", 9),
        ("memory_total", 128 << 30, "memory_total_bytes", 128 << 30), ("memory_used", 672 << 20, "memory_used_bytes", 672 << 20),
        ("power", 220_000, "power_mW", 220_000), ("power_limit", 900_000, "power_default_limit_mW", 900_000),
        ("energy", 12, "energy", 12), ("temperature_board", 27, "temperature_onboard", 27),
        ("temperature_chip", 31, "temperature_onchip", 31), ("temperature_chip_highest", 95, "temperature_threshold_gpu", 95),
        ("temperature_memory_highest", 96, "temperature_threshold_memory", 96),
        ("temperature_shutdown", 105, "temperature_threshold_shutdown", 105),
        ("temperature_slowdown", 94, "temperature_threshold_slowdown", 94),
        ("link_generation", 5, "pci_link_speed", 5), ("link_width", 16, "pci_link_width", 16),
        ("pcie_rx", 11, "pcie_rx", 11), ("pcie_rx", 11, "pcie_receive_throughput", 11),
        ("pcie_tx", 12, "pcie_tx", 12), ("pcie_tx", 12, "pcie_transmit_throughput", 12),
        ("replays", 3, "pcie_replay_count", 3), ("ecc_mode", 1, "ecc_feature_mode", 1),
        ("rows_pending", 1, "pending_rows_state", 1),
        ("rows_single_bit", 2, "pending_rows_with_single_bit_ecc_errors", 2),
        ("rows_double_bit", 1, "pending_rows_with_double_bit_ecc_errors", 1), ("utilization", 40, "utilization", 40),
    ],
)  # fmt: skip
def test_a_figure_of_the_library_has_the_peers_name_and_unit(figure: str, value: int, name: str, expected: int) -> None:
    assert figure in {key for key, *_ in (*hlml_child.ROWS, *hlml_child.MORE)} | {"memory_total", "memory_used"}
    assert series(page(card(0), **{figure: value}), f"habanalabs_{name}", "id") == {("0",): expected}


def test_free_memory_is_what_is_not_used() -> None:
    text = page(card(0), memory_total=10 << 20, memory_used=3 << 20)
    assert series(text, "habanalabs_memory_free_bytes", "id") == {("0",): 7 << 20}


def test_ports_have_their_number_and_kind() -> None:
    text = page(card(0), internal_port_0=1, internal_port_11=0, external_port_22=1)
    assert series(text, "habanalabs_nic_port_status", "port", "port_type") == {
        ("0", "internal"): 1, ("11", "internal"): 0, ("22", "external"): 1,
    }  # fmt: skip


def test_a_card_has_the_peers_labels_in_its_order_and_its_pod() -> None:
    said = {"board_uuid": "01P1", "uboot_ver": "U-Boot 1", "armcp_kernel_ver": "Linux 5"}
    text = page(card(0), card(1), said=said, more={"holdings": (holding("p", "AN1", resource="habana.ai/gaudi"),)})
    names = [name for name, _ in LABELS]
    assert series(text, "habanalabs_device_config", *names) == {
        ("AN0", "01P1", "AN0", "0", "U-Boot 1", "Linux 5", "1.23", "", ""): 1,
        ("AN1", "01P1", "AN1", "1", "U-Boot 1", "Linux 5", "1.23", "team", "p"): 1,
    }  # fmt: skip
    line = next(row for row in text.splitlines() if row.startswith("habanalabs_device_config{"))
    assert [pair.partition("=")[0] for pair in line[line.index("{") + 1 : line.index("}")].split(",")] == names


def test_two_containers_of_one_pod_are_one_series() -> None:
    both = tuple(holding("p", "AN0", resource="habana.ai/gaudi", container=name) for name in ("a", "b"))
    lines = page(card(0), more={"holdings": both}, power=1).splitlines()
    assert len([line for line in lines if line.startswith("habanalabs_power_mW{")]) == 1


def once(root) -> str:
    command = [sys.executable, "-m", "kgpu", "exporter", "--root", str(root), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("model", ["gaudi2", "gaudi3"])
async def test_a_simulated_node_has_all_but_what_the_first_cards_have(sim_root, model: str, prometheus_bin) -> None:  # noqa: F811
    root = sim_root(model, gpus=2)
    processes.add(root, 1, pid=4100, memory_mib=2048)
    text = once(root)
    assert {row.name for row in ROWS if not series(text, row.name, "id")} == {
        f"habanalabs_clock_{part}_max_mhz" for part in ("ic", "mme", "tpc")
    }
    assert series(text, "habanalabs_memory_used_bytes", "id")["1",] == 2 << 30
    assert len(series(text, "habanalabs_nic_port_status", "id", "port")) == 2 * 24
    code, said = await check(prometheus_bin, text)
    assert code in {0, 3}, said
    assert [line for line in said if not any(word in line for word in (*KEPT, "habanalabs_"))] == []


def test_a_card_that_hangs_takes_no_other_along(sim_root) -> None:
    root = sim_root("gaudi3", gpus=2)
    operate.inject(root, "hang", gpu=0)
    text = once(root)
    operate.clear(root)
    assert series(text, "habanalabs_power_mW", "id") == {("1",): 220_000}
    assert len(series(text, "DCGM_FI_DEV_POWER_USAGE", "gpu")) == 1


def reader_of() -> FakeReader:
    return FakeReader(Inventory(vendor="gaudi", driver_version="1.23", accelerators=(card(0),)))


async def test_it_listens_where_the_replaced_exporter_does_when_asked_for(monkeypatch) -> None:
    port = free_port()
    monkeypatch.setattr("kgpu.exporter.vendors.gaudi.page.PORT", port)
    async with serving(reader_of(), flags={"gaudi_port": "true", "address": None}) as served:
        assert served.address.port == port
        await served.until("habanalabs_device_config", {"0": 1}, label="id")
    async with serving(reader_of(), flags={"gaudi_port": "true"}) as served:
        assert served.address.port != port, "an address that is given is kept"


def test_the_port_is_asked_for_and_nothing_of_it_is_elsewhere() -> None:
    assert PORT == 41611
    assert vendor_page("gaudi", resolve({}, {}), lambda _: None).port is None
    env = {"KGPU_EXPORTER_GAUDI_METRICS_PORT": "true"}
    assert vendor_page("gaudi", resolve({}, env), lambda _: None).port == PORT
    assert vendor_page("intel", resolve({}, env), lambda _: None) is None
