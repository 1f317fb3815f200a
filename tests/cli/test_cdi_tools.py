"""``kgpu cdi list|transform|validate`` from the outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError, HostError
from kgpu.cli.cdi import cdi
from kgpu.cli.cdi_tools import NOT_VALID
from kgpu.cli.main import main
from kgpu.formats.cdi import parse_spec
from kgpu.hw.simulator import mig

KIND = "vendor.com/class"


def run(*arguments: object, **more: object):
    return CliRunner().invoke(cdi, [str(argument) for argument in arguments], catch_exceptions=False, **more)


def spec(*names: str, **edits: object) -> str:
    own = {"env": ["A=b"], **edits}
    devices = [{"name": name, "containerEdits": own} for name in names]
    return json.dumps({"cdiVersion": "0.6.0", "kind": KIND, "devices": devices})


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "cdi"
    made.mkdir(mode=0o755)
    return made


def test_list_as_json(folder) -> None:
    (folder / "a.json").write_text(spec("10", "2"))
    (folder / "b.yml").write_text(spec("3"))
    result = run("list", "--spec-dir", folder, "-o", "json")
    said = json.loads(result.stdout)
    assert said["devices"] == [f"{KIND}=10", f"{KIND}=2"]
    assert len(said["warnings"]) == 1
    assert "warning: " in result.stderr


def test_folders_by_comma_and_variable(folder, tmp_path) -> None:
    (folder / "a.json").write_text(spec("0"))
    env = {"NVIDIA_CTK_CDI_SPEC_DIRS": f"{tmp_path}/none,{folder}"}
    assert run("list", env=env).stdout == f"{KIND}=0\n"
    assert run("list", "--spec-dir", f"{folder},{tmp_path}/none").stdout == f"{KIND}=0\n"


# --- transform ---

MOUNT = {"mounts": [{"hostPath": "/driver/lib.so", "containerPath": "/driver/lib.so"}]}


@pytest.mark.parametrize(
    ("words", "host", "container"),
    [([], "/lib.so", "/driver/lib.so"), (["--relative-to", "container"], "/driver/lib.so", "/lib.so")],
)
def test_a_root_moves_from_file_to_file(folder, words: list[str], host: str, container: str) -> None:
    source, target = folder / "in.json", folder / "sub/out.yaml"
    source.write_text(spec("0", **MOUNT))
    result = run("transform", "root", "--from", "/driver", "--to", "/", "--input", source, "--output", target, *words)
    assert (result.exit_code, result.stdout) == (0, "")
    (mount,) = parse_spec(target.read_bytes()).devices[0].container_edits.mounts
    assert (mount.host_path, mount.container_path) == (host, container)


def test_standard_input_to_standard_output() -> None:
    result = run("transform", "root", "--from", "/", "--to", "/host", input=spec("0", **MOUNT))
    assert result.stdout.startswith("---\n")
    (mount,) = parse_spec(result.stdout).devices[0].container_edits.mounts
    assert mount.host_path == "/host/driver/lib.so"


def test_a_file_may_be_changed_in_its_place(folder) -> None:
    file = folder / "a.json"
    file.write_text(spec("0", **MOUNT))
    run("transform", "root", "--from", "/driver", "--to", "/", "--input", file, "--output", file)
    assert parse_spec(file.read_text()).devices[0].container_edits.mounts[0].host_path == "/lib.so"
    assert os.listdir(folder) == ["a.json"]


@pytest.mark.parametrize(
    "words",
    [
        ["--from", "driver"],
        ["--to", "/a/../b"],
        ["--input", "/nowhere.json"],
        ["--input", "/dev/zero"],
        ["--output", "/proc/no/x.json"],
    ],
)
def test_a_bad_transform_is_explained_and_writes_nothing(folder, words: list[str]) -> None:
    with pytest.raises((ConfigError, HostError)) as caught:
        run("transform", "root", *words, input=spec("0"))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text", ["", "[", "{}", '{"cdiVersion": "0.6.0", "kind": "vendor.com/class", "devices": [], "x": 1}']
)
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="standard input"):
        run("transform", "root", "--from", "/a", "--to", "/b", input=text)


def test_endless_input_ends() -> None:
    with open("/dev/zero", "rb") as zero:
        done = subprocess.run(
            [sys.executable, "-m", "kgpu", "cdi", "transform", "root"], stdin=zero, capture_output=True, timeout=300
        )
    assert done.returncode == 2
    assert b"bytes" in done.stderr


# --- validate ---


def test_a_spec_of_a_simulated_node_is_valid_until_the_node_changes(sim_root, folder) -> None:
    root = sim_root("hgx-h100", gpus=2)
    target = folder / "nvidia.yaml"
    assert run("generate", "--driver-root", root, "--output", target).exit_code == 0
    good = run("validate", "--spec-dir", folder, "--driver-root", root)
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "1 file, 5 devices: valid")
    os.unlink(root / "dev/nvidia1")
    bad = run("validate", "--spec-dir", folder, "--driver-root", root)
    assert bad.exit_code == NOT_VALID
    assert f"{root}/dev/nvidia1 is not there" in bad.stdout
    assert "to do:" in bad.stdout
    assert run("validate", "--spec-dir", folder, "--spec-only").exit_code == 0


def test_the_driver_was_updated(sim_root, folder) -> None:
    root = sim_root("t4", gpus=1)
    run("generate", "--driver-root", root, "--output", folder / "nvidia.yaml")
    version = root / "proc/driver/nvidia/version"
    version.chmod(0o644)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  999.10.01  Mon\n")
    result = run("validate", "--spec-dir", folder, "--driver-root", root)
    assert result.exit_code == NOT_VALID
    assert "but 999.10.01 runs" in result.stdout


def test_warnings_are_counted_and_devices_that_runtimes_do_not_find_are_errors(folder) -> None:
    (folder / "a.json").write_text(spec("0"))
    (folder / "a.yml").write_text(spec("0"))
    (folder / "b.yml").write_text(spec("0"))
    good = run("validate", "--spec-dir", folder, "--spec-only")
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "3 files, 1 device: valid, 2 warnings")
    (folder / "b.yml").write_text(spec("1"))
    bad = run("validate", "--spec-dir", folder, "--spec-only")
    assert (bad.exit_code, bad.stdout.splitlines()[-1]) == (NOT_VALID, "3 files, 1 device: 1 error, 1 warning")
    assert "so its devices can't be given" in bad.stdout


def test_findings_as_json(folder) -> None:
    (folder / "a.json").write_text(spec("0"))
    (folder / "b.json").write_text(spec("0"))
    result = run("validate", "--spec-dir", folder, "--spec-only", "-o", "json")
    said = json.loads(result.stdout)
    assert (said["valid"], said["devices"], len(said["files"])) == (False, [], 2)
    assert said["flaws"][0]["where"] == f"{KIND}=0"
    assert result.exit_code == NOT_VALID


def test_named_files_alone(folder) -> None:
    (folder / "a.json").write_text(spec("0"))
    (folder / "b.json").write_text("{")
    assert run("validate", folder / "a.json", "--spec-only").exit_code == 0
    assert run("validate", folder / "a.json", folder / "b.json", "--spec-only").exit_code == NOT_VALID
    with pytest.raises(HostError, match="no file"):
        run("validate", folder / "c.json")


def test_a_host_root_has_its_own_folders(tmp_path) -> None:
    static = tmp_path / "host/etc/cdi"
    static.mkdir(parents=True)
    (static / "a.json").write_text(spec("0", mounts=[{"hostPath": "/usr/lib.so", "containerPath": "/usr/lib.so"}]))
    missing = run("validate", "--host-root", tmp_path / "host")
    assert "/usr/lib.so is not there" in missing.stdout
    (tmp_path / "host/usr").mkdir()
    (tmp_path / "host/usr/lib.so").write_text("")
    assert run("validate", "--host-root", tmp_path / "host").exit_code == 0


def test_many_alike_are_counted(folder) -> None:
    gone = [{"hostPath": f"/no/{n}", "containerPath": f"/no/{n}"} for n in range(9)]
    (folder / "a.json").write_text(spec("0", mounts=gone))
    lines = run("validate", "--spec-dir", folder).stdout.splitlines()
    assert sum("is not there" in line for line in lines) == 4
    assert "  and 5 more like these" in lines
    assert lines[-1].endswith("9 errors")


def test_no_spec_at_all_is_not_valid(tmp_path, capsys) -> None:
    assert main(["kgpu", "cdi", "validate", "--spec-dir", str(tmp_path)]) == NOT_VALID
    assert "kgpu cdi generate" in capsys.readouterr().out


def test_validate_compares_mig_slices_with_those_of_now(folder, sim_root) -> None:
    root = sim_root("hgx-h100", gpus=1)
    mig.partition(root, 0, ["1g.10gb"] * 2)
    file = folder / "nvidia.yaml"
    assert run("generate", "--root", root, "--annotate", "--output", file).exit_code == 0
    words = ("validate", file, "--driver-root", root, "-o", "json")
    assert json.loads(run(*words).stdout)["flaws"] == []
    mig.partition(root, 0, ["3g.40gb"])
    result = run(*words)
    assert result.exit_code == NOT_VALID
    said = {flaw["where"]: flaw for flaw in json.loads(result.stdout)["flaws"]}
    assert said["device 0:1"]["severity"] == "error"
    assert "layout has changed" in said["device 0:1"]["what"]
    assert run(*words, "--spec-only").exit_code == 0


def test_validate_says_when_gpus_could_not_be_read(folder, tmp_path) -> None:
    (folder / "a.json").write_text(spec("0"))
    result = run("validate", "--spec-dir", folder, "--driver-root", tmp_path)
    assert result.exit_code == 0
    assert "note: GPUs and MIG slices were not compared: " in result.stdout
