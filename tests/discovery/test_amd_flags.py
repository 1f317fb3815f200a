"""AMD's labeller by its flags and its name: a row per flag, firmware from the driver's files, and what is switched off goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.cli.main import main
from kgpu.discovery.amd_labels import amd_labels
from kgpu.discovery.config import resolve
from kgpu.discovery.model import LabelSettings, NodeFacts
from kgpu.discovery.node_facts import FIRMWARE, read_facts
from kgpu.discovery.plan import plan
from kgpu.discovery.tables import LabelledNode
from kgpu.formats.names import AMD_LABELS
from kgpu.formats.plugin_config import PluginConfig
from kgpu.hw.amd.client import AmdReader
from kgpu.hw.port import HardwareFinding, Inventory, Problem
from tests.discovery.test_amd_labels import VEGA

GPU = replace(VEGA, mode="spx_nps1", pci_bus_id="0000:19:00.0")
FACTS = NodeFacts(firmware={"0000:19:00.0": {"MEC": 169, "SMC": 5588224}})


def chosen(**flags: str) -> frozenset[str]:
    given = {f"amd_{name}": value for name, value in flags.items()}
    return resolve(PluginConfig(), overrides=given).labels().amd_labels


def labels(settings: LabelSettings, *gpus, facts: NodeFacts = FACTS) -> dict[str, str]:
    inventory = Inventory(vendor="amd", driver_version="6.10.5", accelerators=gpus, library_version="0C1A")
    return dict(
        amd_labels(LabelledNode(inventory=inventory, gpus=gpus, settings=settings, facts=facts, timestamp=None))
    )


def test_the_flags_are_the_replaced_programs() -> None:
    assert set(AMD_LABELS) == {
        "firmware", "family", "driver-version", "driver-src-version", "device-id", "product-name", "vram", "simd-count",
        "cu-count", "compute-memory-partition", "compute-partitioning-supported", "memory-partitioning-supported",
    }  # fmt: skip


@pytest.mark.parametrize("name", AMD_LABELS)
def test_a_flag_asks_for_its_labels_and_false_leaves_them_out(name: str) -> None:
    def belongs(key: str) -> bool:
        rest = key.partition("/gpu.")[2]
        return rest == name or rest.startswith(f"{name}.")

    everything = labels(LabelSettings(), GPU)
    alone = labels(LabelSettings(amd_labels=chosen(**{name.replace("-", "_"): "true"})), GPU)
    assert alone == {key: text for key, text in everything.items() if belongs(key)} != {}
    without = labels(LabelSettings(amd_labels=chosen(**{name.replace("-", "_"): "false"})), GPU)
    assert without == {key: text for key, text in everything.items() if not belongs(key)}


def test_without_a_flag_all_are_written_and_with_some_only_those() -> None:
    assert chosen() == set(AMD_LABELS)
    assert chosen(vram="true", cu_count="true", family="false") == {"vram", "cu-count"}


def test_a_label_that_is_switched_off_is_not_kept_for_a_gpu_that_says_nothing() -> None:
    lost = HardwareFinding(subject="", problem=Problem.UNREADABLE, what="x", expected="", remedy="", gpu=0)
    inventory = Inventory(vendor="amd", driver_version="6.10.5", accelerators=(replace(GPU, findings=(lost,)),))
    before = plan(inventory, LabelSettings(), FACTS).labels
    after = plan(inventory, LabelSettings(amd_labels=chosen(family="true")), FACTS, previous=before).labels
    assert "amd.com/gpu.vram" in before
    assert [key for key in after if "vram" in key] == []
    assert after["amd.com/gpu.family"] == "AI"


def test_versions_of_firmware_are_counted_under_beta_alone() -> None:
    other = replace(GPU, index=1, uuid="b", pci_bus_id="0000:1a:00.0")
    facts = NodeFacts(firmware={**FACTS.firmware, "0000:1a:00.0": {"MEC": 169, "SMC": 7}})
    got = {key: text for key, text in labels(LabelSettings(), GPU, other, facts=facts).items() if "firmware" in key}
    assert got == {
        "beta.amd.com/gpu.firmware.MEC.fw.169": "2", "beta.amd.com/gpu.firmware.SMC.fw.5588224": "1",
        "beta.amd.com/gpu.firmware.SMC.fw.7": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "version"),
    [("0x000000a9\n", 169), ("0x00000000\n", None), ("169\n", None), ("0x1" + "0" * 9, None), ("\x00\xff", None), ("", None)],
)  # fmt: skip
def test_a_file_is_a_version_or_nothing(tmp_path, text: str, version: int | None) -> None:
    folder = tmp_path / "sys/bus/pci/drivers/amdgpu/0000:19:00.0/fw_version"
    folder.mkdir(parents=True)
    (folder / "mec_fw_version").write_text(text)
    (tmp_path / "sys/bus/pci/drivers/amdgpu/module").mkdir()
    found = read_facts(LabelSettings(), str(tmp_path)).firmware
    assert found == {"0000:19:00.0": {"MEC": version} if version else {}}


async def test_a_simulated_node_has_them(sim_root) -> None:
    root = sim_root("mi300x", gpus=2)
    reader = AmdReader(driver_root=root, deadline=60.0)
    facts = read_facts(LabelSettings(), str(root))
    got = plan(await reader.inventory(), LabelSettings(), facts).labels
    await reader.close()
    assert {key: text for key, text in got.items() if ".firmware." in key} == {
        "beta.amd.com/gpu.firmware.MEC.fw.169": "2", "beta.amd.com/gpu.firmware.RLC.fw.92": "2",
        "beta.amd.com/gpu.firmware.SDMA0.fw.19": "2", "beta.amd.com/gpu.firmware.SMC.fw.5588224": "2",
    }  # fmt: skip
    assert len(FIRMWARE) == 10


def test_other_nodes_have_no_such_files(sim_root) -> None:
    assert read_facts(LabelSettings(), str(sim_root("l4"))).firmware == {}


def test_under_the_replaced_programs_name_its_flags_choose_and_the_node_is_labelled(
    sim_root, capsys, monkeypatch
) -> None:
    words = ["-vram", "-cu-count=true", "--oneshot", "--sink", "stdout", "--root", str(sim_root("mi300x", gpus=2))]
    assert main(["/root/k8s-node-labeller", *words]) == 0
    found = {line.partition("=")[0] for line in capsys.readouterr().out.splitlines() if "amd.com/gpu." in line}
    ours = {"amd.com/gpu.vram", "beta.amd.com/gpu.vram", "beta.amd.com/gpu.vram.192G",
            "amd.com/gpu.cu-count", "beta.amd.com/gpu.cu-count", "beta.amd.com/gpu.cu-count.304"}  # fmt: skip
    assert {key for key in found if LabelSettings(amd_labels=frozenset()).leaves_out(key)} == ours
    for name in ("NODE_NAME", "DS_NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["k8s-node-labeller", "-vram"]) == 2
    assert "required flag node-name not set" in capsys.readouterr().err
