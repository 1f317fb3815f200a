"""Profiles: the built-in ones carry the real cards' facts; what a user writes is checked and explained."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.hw.simulator import profiles

REQUIRED = {
    "dgx-1-v100", "dgx-1-p100", "dgx-a100-40g", "dgx-a100-80g", "hgx-h100", "hgx-h200", "hgx-b200", "gb200",
    "rtx-pro-6000", "a30", "l4", "l40s", "t4", "geforce", "rtx8000", "mixed-models",
}  # fmt: skip

SMALL = """
machine: {product: Box}
driver: {version: 550.54.15, cuda: "12.4"}
gpus:
  - {model: t4, pci: ["0000:01:00.0", "0000:02:00.0"]}
"""


def with_(text: str = SMALL, **changes: object) -> str:
    return yaml.safe_dump({**yaml.safe_load(text), **changes})


def parse(text: str) -> profiles.Profile:
    return profiles.parse(text, name="mine", source="mine.yaml")


def test_every_promised_profile_is_there():
    assert set(profiles.names()) >= REQUIRED


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_built_in_profiles_load_and_are_plausible(name):
    profile = profiles.load(name)
    assert profile.topology.count == len(profile.gpus)
    assert profile.title
    for gpu in profile.gpus:
        model = gpu.model
        assert model.pci.device & 0xFFFF == 0x10DE
        assert model.memory.reserved_mib < model.memory.total_mib
        assert model.power_w.min <= model.power_w.limit <= model.power_w.max
        heat = model.temperature_c
        assert heat.idle < heat.max_operating <= heat.slowdown < heat.shutdown
        assert model.cores % model.multiprocessors == 0


@pytest.mark.parametrize(
    ("profile", "count", "name", "mib", "device"),
    [
        ("dgx-a100-40g", 8, "NVIDIA A100-SXM4-40GB", 40960, 0x20B0),
        ("dgx-a100-80g", 8, "NVIDIA A100-SXM4-80GB", 81920, 0x20B2),
        ("hgx-h100", 8, "NVIDIA H100 80GB HBM3", 81559, 0x2330),
        ("hgx-h200", 8, "NVIDIA H200", 143771, 0x2335),
        ("hgx-b200", 8, "NVIDIA B200", 183359, 0x2901),
        ("gb200", 4, "NVIDIA GB200", 189471, 0x2941),
        ("a30", 4, "NVIDIA A30", 24576, 0x20B7),
        ("l4", 4, "NVIDIA L4", 23034, 0x27B8),
        ("t4", 1, "Tesla T4", 15360, 0x1EB8),
        ("dgx-1-v100", 8, "Tesla V100-SXM2-16GB", 16384, 0x1DB1),
    ],
)
def test_facts_that_users_select_nodes_by(profile, count, name, mib, device):
    loaded = profiles.load(profile)
    assert len(loaded.gpus) == count
    for gpu in loaded.gpus:
        assert (gpu.model.name, gpu.model.memory.total_mib) == (name, mib)
        assert gpu.model.pci.device >> 16 == device


def test_dgx_a100_is_the_machine_of_the_documents():
    profile = profiles.load("dgx-a100-80g")
    assert profile.machine.product.replace(" ", "-") == "DGX-A100"
    assert profile.driver.version.split(".")[0] == "535"


@pytest.mark.parametrize(("profile", "ports"), [("dgx-1-v100", 6), ("dgx-1-p100", 4), ("rtx8000", 2)])
def test_every_port_of_a_mesh_is_used(profile, ports):
    shape = profiles.load(profile).topology
    assert [sum(row) for row in shape.lanes] == [ports] * shape.count


def test_gpus_option_cuts_and_extends():
    assert [gpu.bus for gpu in profiles.load("hgx-h100", gpus=2).gpus] == ["0000:1b:00.0", "0000:43:00.0"]
    many = profiles.load("hgx-h100", gpus=64)
    assert len({gpu.bus for gpu in many.gpus}) == 64
    assert [gpu.bus for gpu in many.gpus] == sorted(gpu.bus for gpu in many.gpus)


@pytest.mark.parametrize("gpus", [0, -1, 65])
def test_gpus_option_has_limits(gpus):
    with pytest.raises(ConfigError, match="GPUs"):
        profiles.load("t4", gpus=gpus)


def test_topology_file_decides_the_number_of_gpus(tmp_path):
    file = tmp_path / "topo.yaml"
    file.write_text("pcie: [{gpus: [[0, 1], 2]}]\nnvlink: {pairs: [[0, 2, 4]]}\n")
    profile = profiles.load("hgx-h100", topology=file)
    assert len(profile.gpus) == 3
    assert profile.topology.lanes[0][2] == 4


def test_more_lanes_than_the_model_has_are_refused(tmp_path):
    file = tmp_path / "topo.yaml"
    file.write_text("pcie: [{gpus: [0, 1]}]\nnvlink: {pairs: [[0, 1, 4]]}\n")
    with pytest.raises(ConfigError, match="NVIDIA L4 has 0"):
        profiles.load("l4", topology=file)


def test_a_model_can_build_on_another():
    text = with_(models={"t4": {"base": "t4", "memory": {"total_mib": 999}}, "x": {"base": "t4", "name": "Tesla X"}})
    profile = parse(text.replace("model: t4", "model: x"))
    assert profile.gpus[0].model.name == "Tesla X"
    assert profile.gpus[0].model.memory.total_mib == 999
    assert profile.gpus[0].model.memory.bus_bits == 256


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (with_(gpu=1), 'did you mean "gpus"'),
        (with_(gpus=[{"model": "l40", "pci": ["0000:01:00.0"]}]), 'did you mean "l40s"'),
        (with_(gpus=[{"model": "t4", "pci": ["nonsense"]}]), "gpus"),
        (with_(gpus=[{"model": "t4", "pci": ["0000:01:00.0", "0000:01:00.0"]}]), "two GPUs"),
        (with_(gpus=[{"model": "t4", "pci": ["0000:02:00.0", "0000:01:00.0"]}]), "PCI order"),
        (with_(gpus=[]), "gpus"),
        (with_(driver={"version": 550.5, "cuda": "12.4"}), "driver.version"),
        (with_(driver={"version": "550.54.15", "cuda": "twelve"}), "driver.cuda"),
        (with_(models={"a": {"base": "b"}, "b": {"base": "a"}}, gpus=[{"model": "a", "pci": ["0:1:0.0"]}]), "gpus"),
        (with_(models={"t4": {"base": "t4", "mig": "h10"}}), "mig table"),
        (with_(models={"t4": {"base": "t4", "brand": "teslla"}}), 'did you mean "tesla"'),
        (with_(models={"t4": {"base": "t4", "memory": {"total_mib": -1}}}), "total_mib"),
        (with_(topology={"pcie": [{"gpus": [0]}]}), "the topology has 1"),
        (with_(fabric={"state": "complete"}), 'did you mean "completed"'),
        (with_(imex_channels=99999), "imex_channels"),
        ("a: &x [1]\nb: *x\n", "alias"),
        ("{", "not valid YAML"),
        ("[" * 1_000_000, "nested"),
        ("- " * 300_000, "nested"),
        (f"imex_channels: {'1' * 6000}", "not valid YAML"),
        ("- 1", "mine.yaml"),
        ("", "mine.yaml"),
        ("a: 2024-99-99", "not valid YAML"),
        ("? {a: 1}\n: 2", "mine.yaml"),
    ],
)
def test_mistakes_are_named_and_explained(text, says):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert caught.value.expected
    assert caught.value.remedy


def test_bases_that_go_round_are_refused():
    card = [{"model": "a", "pci": ["0000:01:00.0"]}]
    with pytest.raises(ConfigError, match="its own base"):
        parse(with_(models={"a": {"base": "b"}, "b": {"base": "a"}}, gpus=card))


def test_an_unknown_profile_gets_a_suggestion():
    with pytest.raises(ConfigError, match='did you mean "hgx-h100"'):
        profiles.load("hgx-h10")


def test_a_profile_file_can_be_given(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL)
    assert profiles.load(str(file)).name == "mine"
    for missing in (tmp_path / "no.yaml", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            profiles.load(f"{missing}/")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read"):
        profiles.load(str(tmp_path / "binary.yaml"))


KEYS = st.sampled_from(
    ["machine", "driver", "gpus", "models", "topology", "nvswitches", "fabric", "t4", "base", "pci", "model", "product",
     "version", "cuda", "pcie", "nvlink", "pairs", "numa", "matrix", "boards", "switched", "memory", "title"]
) | st.text(max_size=5)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["t4", "0000:01:00.0", "550.54.15", "12.4", "0-3", "GPU0"])
)  # fmt: skip
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)


@given(st.dictionaries(KEYS, TREES, max_size=6), st.booleans())
def test_any_mapping_is_a_profile_or_a_three_part_error(data, on_top):
    text = yaml.safe_dump({**yaml.safe_load(SMALL), **data} if on_top else data)
    for read in (parse, lambda raw: profiles.parse_topology(raw, source="t")):
        with contextlib.suppress(ConfigError):  # anything else is a failure
            read(text)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_a_profile_or_a_three_part_error(text):
    for read in (parse, lambda raw: profiles.parse_topology(raw, source="t")):
        with pytest.raises(ConfigError):
            read(text)
