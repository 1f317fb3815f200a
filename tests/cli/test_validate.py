"""``kgpu validate`` and ``nvidia-validator``: what they print, and their exit codes."""

from __future__ import annotations

import json
import os

import pytest

from kgpu.cli.main import main
from kgpu.cli.validate import document
from kgpu.formats.validation_report import CheckTrouble
from kgpu.hw.simulator import operate
from kgpu.validator.model import Check, DeviceResult, NodeValidation, Status, failed, of_devices


@pytest.fixture
def root(sim_root):
    return sim_root("hgx-h100", gpus=2)


@pytest.fixture
def spec(root, tmp_path, capsys):
    assert main(["kgpu", "cdi", "generate", "--root", str(root), "--output", str(tmp_path / "cdi/a.json")]) == 0
    capsys.readouterr()
    return tmp_path / "cdi"


def test_a_whole_node_passes(root, spec, capsys) -> None:
    assert main(["kgpu", "validate", "--root", str(root), "--cdi-dir", str(spec)]) == 0
    out = capsys.readouterr().out
    assert "[Vector addition of 50000 elements]; Test PASSED on 2 of 2 devices" in out
    assert out.splitlines()[-1] == "Test PASSED"


def test_what_is_wrong_is_said_in_three_parts(root, spec, capsys) -> None:
    operate.set_values(root, {"compute-mode": "prohibited"}, gpu=1)
    assert main(["kgpu", "validate", "--root", str(root), "--cdi-dir", str(spec)]) == 3
    out = capsys.readouterr().out
    assert "GPU 1 (NVIDIA H100 80GB HBM3): failed" in out
    assert "to do: run `nvidia-smi -c 0`" in out
    assert out.splitlines()[-1] == "not passed: cuda"


def test_json_has_every_device(root, spec, capsys) -> None:
    assert main(["kgpu", "validate", "--only", "driver,cuda", "--root", str(root), "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is True
    assert [(one["check"], len(one["devices"])) for one in data["results"]] == [("driver", 2), ("cuda", 2)]


def test_json_has_every_key_of_a_trouble() -> None:
    """The annotation leaves out what is empty; scripts over the JSON find each key."""
    bare, whole = CheckTrouble(what="lost"), CheckTrouble(what="a", expected="b", remedy="c", problem="d")
    device = DeviceResult(uuid="u", gpu="u", name="GPU 0", status=Status.FAILED, trouble=bare)
    well = DeviceResult(uuid="v", gpu="v", name="GPU 1", status=Status.PASSED)
    report = NodeValidation(results=(failed(Check.DRIVER, whole), of_devices(Check.CUDA, (device, well))))
    driver, cuda = document(report)["results"]
    assert driver["trouble"] == {"what": "a", "expected": "b", "todo": "c", "problem": "d"}
    assert [one["trouble"] for one in cuda["devices"]] == [
        {"what": "lost", "expected": "", "todo": "", "problem": ""}, None,
    ]  # fmt: skip
    assert cuda["trouble"] is None


def test_no_driver_is_a_result_not_an_error(tmp_path, capsys) -> None:
    assert main(["kgpu", "validate", "--root", str(tmp_path)]) == 3
    assert "libcuda.so.1 not found under" in capsys.readouterr().out


def test_what_can_not_be_checked_has_not_passed(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    words = ["validate", "--only", "plugin", "--root", str(tmp_path)]
    assert main(["kgpu", *words]) == 3
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing was checked")
    assert main(["kgpu", *words, "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_the_replaced_programs_plugin_component_needs_a_node(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main(["nvidia-validator", "-c", "plugin", "--output-dir", str(tmp_path)]) == 2
    assert "--node-name" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_typo_is_bad_input(capsys) -> None:
    assert main(["kgpu", "validate", "--only", "cudda"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_the_replaced_programs_component_writes_its_file(root, tmp_path) -> None:
    words = [
        "--output-dir",
        str(tmp_path / "v"),
        "--driver-install-dir-ctr-path",
        str(root),
        "--driver-install-dir",
        "/d",
    ]
    assert main(["/usr/bin/nvidia-validator", "-c", "driver", *words]) == 0
    text = (tmp_path / "v/driver-ready").read_text()
    assert text.startswith(f"IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/d\nDRIVER_ROOT_CTR_PATH={root}\n")
    assert main(["nvidia-validator", "-c", "cuda", *words]) == 0
    assert sorted(os.listdir(tmp_path / "v")) == ["cuda-ready", "driver-ready"]


def test_the_replaced_programs_failure_has_a_reason_and_no_ready_file(tmp_path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v/driver-ready").write_text("")
    words = [
        "--output-dir",
        str(tmp_path / "v"),
        "--driver-install-dir-ctr-path",
        str(tmp_path),
        "--host-root",
        str(tmp_path),
    ]
    assert main(["nvidia-validator", "--component=driver", "--with-wait=false", *words]) == 3
    assert os.listdir(tmp_path / "v") == ["driver-not-ready"]


def test_its_environment_counts(root, tmp_path, monkeypatch) -> None:
    for name, value in (
        ("COMPONENT", "driver"), ("OUTPUT_DIR", str(tmp_path / "v")), ("DRIVER_INSTALL_DIR_CTR_PATH", str(root)),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert main(["nvidia-validator"]) == 0
    assert (tmp_path / "v/driver-ready").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-c", "vfio-pci"], "does not validate vfio-pci"),
        (["-c", "cc-manager"], "keep NVIDIA's operator on nodes whose GPUs go to virtual machines"),
        (["-c", "nvidia-fs", "-s", "soon"], "--sleep-interval-seconds"),
        (["-c", "drver"], "did you mean"),
        ([], "no component"),
        (["-c", "driver", "-w", "maybe"], "neither true nor false"),
        (["-c", "metrics"], "no port"),
    ],
)
def test_what_it_refuses(words, said, tmp_path, capsys) -> None:
    assert main(["nvidia-validator", *words, "--output-dir", str(tmp_path), "--driver-install-dir-ctr-path", str(tmp_path),
                 "--host-root", str(tmp_path)]) == 2  # fmt: skip
    assert said in capsys.readouterr().err


def module(sys, name: str) -> None:
    (sys / "module" / name).mkdir(parents=True)
    (sys / "module" / name / "refcnt").write_text("0\n")


def machine_words(tmp_path) -> list[str]:
    """A host of its own, with a PCI bus on which there is nothing."""
    (tmp_path / "host/sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    return ["--output-dir", str(tmp_path / "v"), "--host-root", str(tmp_path / "host")]


@pytest.mark.parametrize(
    ("component", "name"), [("nvidia-fs", "nvidia_fs"), ("gdrcopy", "gdrdrv"), ("nvidia-peermem", "nvidia_peermem")]
)
def test_a_component_of_one_module_looks_whether_it_is_loaded(component, name, tmp_path, capsys) -> None:
    words = machine_words(tmp_path)
    (tmp_path / "v").mkdir()
    (tmp_path / f"v/{component}-ready").write_text("")
    assert main(["nvidia-validator", "-c", component, *words]) == 3
    assert os.listdir(tmp_path / "v") == [f"{component}-not-ready"]
    assert f"the kernel module {name} is not loaded" in (tmp_path / f"v/{component}-not-ready").read_text()
    assert f"modprobe {name}" in capsys.readouterr().out
    module(tmp_path / "host/sys", name)
    assert main(["nvidia-validator", "-c", component, *words]) == 0
    assert os.listdir(tmp_path / "v") == [f"{component}-ready"]


def test_with_wait_it_looks_until_the_module_is_there(tmp_path, monkeypatch) -> None:
    words = machine_words(tmp_path)

    async def load(seconds: float) -> None:
        assert seconds == 7
        assert os.listdir(tmp_path / "v") == ["gdrcopy-not-ready"]
        module(tmp_path / "host/sys", "gdrdrv")

    monkeypatch.setattr("kgpu.cli._validate_modules.asyncio.sleep", load)
    assert main(["nvidia-validator", "-c", "gdrcopy", "-w", "-s", "7", *words]) == 0
    assert os.listdir(tmp_path / "v") == ["gdrcopy-ready"]


def test_mofed_is_waited_for_where_it_is_needed_alone(tmp_path, monkeypatch, capsys) -> None:
    words = ["nvidia-validator", "-c", "mofed", *machine_words(tmp_path)]
    assert main(words) == 0
    assert "GPU_DIRECT_RDMA_ENABLED is not true" in capsys.readouterr().out
    monkeypatch.setenv("GPU_DIRECT_RDMA_ENABLED", "true")
    assert main(words) == 0
    assert "no network card of Mellanox" in capsys.readouterr().out
    assert os.listdir(tmp_path / "v") == []
    card = tmp_path / "host/sys/bus/pci/devices/0000:05:00.0"
    card.mkdir()
    (card / "vendor").write_text("0x15b3\n")
    assert main(words) == 3
    (tmp_path / "host/run/mellanox/drivers").mkdir(parents=True)
    (tmp_path / "host/run/mellanox/drivers/.driver-ready").write_text("")
    assert main(words) == 0
    assert os.listdir(tmp_path / "v") == ["mofed-ready"]
    monkeypatch.setenv("USE_HOST_MOFED", "true")
    assert main(words) == 3
    module(tmp_path / "host/sys", "mlx5_core")
    assert main(words) == 0
