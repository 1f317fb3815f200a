"""``kgpu cdi generate`` from the outside: modes, the report, what is not whole, hooks, variables, config.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgpu.cli.cdi import OPTIONS, generate
from kgpu.cli.main import main
from kgpu.formats.cdi import parse_spec
from kgpu.hw.simulator import mig
from tests.host.tree import driver, touch, write


def run(*arguments: object, env: dict[str, str] | None = None):
    return CliRunner().invoke(generate, [str(argument) for argument in arguments], catch_exceptions=False, env=env)


@pytest.fixture
def nodes(tmp_path) -> Path:
    touch(tmp_path, "/dev/nvidia-fs0", "/dev/gdrdrv")
    return driver(tmp_path)


def test_json_on_standard_output_has_spec_and_report(sim_root) -> None:
    root = sim_root("t4", gpus=1)
    result = run("--root", root, "-o", "json")
    data = json.loads(result.stdout)
    assert data["mode"] == "nvml"
    assert data["modeReason"] == "NVML answers"
    assert parse_spec(json.dumps(data["specs"][0])).kind == data["kind"] == "nvidia.com/gpu"
    assert {item["name"] for item in data["items"] if item["kind"] == "node"} >= {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert all(set(item) >= {"found", "path", "why", "breaks", "essential"} for item in data["items"])


@pytest.mark.parametrize("dash", [True, False])
def test_report_goes_where_it_is_sent_and_the_spec_to_its_file(sim_root, tmp_path, dash: bool) -> None:
    root, spec, report = sim_root("t4", gpus=1), tmp_path / "nvidia.yaml", tmp_path / "report.json"
    result = run("--root", root, "--output", spec, "--report", "-" if dash else report)
    data = json.loads(result.stdout if dash else report.read_text())
    assert data["files"] == [str(spec)]
    assert [f"{data['kind']}={device.name}" for device in parse_spec(spec.read_bytes()).devices] == data["devices"]
    if not dash:
        assert result.stdout == ""
        assert f"{spec}: {len(data['devices'])} devices" in result.stderr


def test_what_is_not_whole_stops_with_two_and_is_in_the_report(sim_root, tmp_path, capsys) -> None:
    root, target = sim_root("hgx-h100", gpus=2), tmp_path / "nvidia.yaml"
    mig.partition(root, 1, ["1g.10gb"] * 2)
    (root / "dev/nvidia-uvm").unlink()
    words = ["kgpu", "cdi", "generate", "--root", str(root), "--output", str(target), "-o", "json"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert "1 thing is not whole" in told.err
    assert "/dev/nvidia-uvm is not there" in told.err
    assert "--allow-incomplete" in told.err
    assert json.loads(told.out)["missing"]
    assert not target.exists()
    assert main([*words, "--allow-incomplete"]) == 0
    assert "nvidia.com/gpu=1:0" in json.loads(capsys.readouterr().out)["devices"]
    assert target.exists()


def test_the_report_says_how_the_root_is_laid_out_and_what_each_absence_breaks(sim_root, tmp_path, capsys) -> None:
    """As the page shows it: `jq -r '.driver.layout, .missing[1]'` where there is no /dev/nvidia-uvm."""
    root = sim_root("dgx-h100")
    (root / "dev/nvidia-uvm").unlink()
    words = ["kgpu", "cdi", "generate", "--driver-root", str(root), "--output", str(tmp_path / "n.json"), "-o", "json"]
    assert main([*words, "--allow-incomplete"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "/dev/nvidia-uvm is not there: CUDA will not start" in report["missing"][0]
    page = (Path(__file__).parents[2] / "docs/how-to/write-cdi-specs.md").read_text()
    assert f"\n{report['driver']['layout']}\n{report['missing'][1]}\n```" in page


@pytest.mark.parametrize(("mode", "kind"), [("gds", "nvidia.com/gds"), ("gdrcopy", "nvidia.com/gdrcopy"),
                                            ("management", "management.nvidia.com/gpu")])  # fmt: skip
def test_modes_without_gpus_need_no_nvml(nodes, mode: str, kind: str) -> None:
    spec = parse_spec(run("--mode", mode, "--root", nodes).stdout)
    assert spec.kind == kind
    assert parse_spec(run("--mode", mode, "--root", nodes, "--cdi-class", "gpu").stdout).kind.endswith("/gpu")


def test_hooks_of_a_helper_on_the_host(sim_root, tmp_path) -> None:
    root = sim_root("t4", gpus=1)
    write(tmp_path, "/usr/bin/nvidia-cdi-hook")
    host = {"KGPU_HOST_ROOT": str(tmp_path)}
    spec = parse_spec(run("--root", root, "--hooks", "--disable-hook", "chmod,enable-cuda-compat", env=host).stdout)
    hooks = spec.container_edits.hooks
    assert {hook.path for hook in hooks} == {"/usr/bin/nvidia-cdi-hook"}
    assert all(hook.env for hook in hooks)
    assert "enable-cuda-compat" not in [hook.args[1] for hook in hooks]
    named = parse_spec(run("--root", root, "--nvidia-ctk-path", "/opt/nvidia-ctk").stdout)
    assert named.container_edits.hooks[0].args[:2] == ("nvidia-ctk", "hook")
    assert parse_spec(run("--root", root).stdout).container_edits.hooks == ()
    assert "no effect without --hooks" in run("--root", root, "--enable-hook", "chmod").stderr


def test_every_variable_of_the_replaced_program_is_read(sim_root, tmp_path) -> None:
    root, target = sim_root("hgx-h100", gpus=2), tmp_path / "x"
    prefix = "NVIDIA_CTK_CDI_GENERATE_"
    result = run(
        env={
            "NVIDIA_CTK_DRIVER_ROOT": str(root),
            "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": str(target),
            f"{prefix}OUTPUT_FORMAT": "JSON",
            f"{prefix}MODE": "nvml",
            f"{prefix}DEVICE_NAME_STRATEGIES": "type-index,index",
            f"{prefix}DEVICE_IDS": "1",
            f"{prefix}NO_ALL_DEVICE": "true",
            f"{prefix}VENDOR": "example.com",
            f"{prefix}CLASS": "accel",
            f"{prefix}FEATURE_FLAGS": "disable-ipc-discoverer",
            "NVIDIA_CTK_CDI_HOOK_PATH": "/opt/nvidia-cdi-hook",
            f"{prefix}DISABLED_HOOKS": "all",
            f"{prefix}ENABLED_HOOKS": "update-ldcache",
            f"{prefix}LDCONFIG_PATH": "/sbin/ldconfig.real",
        }
    )
    assert result.exit_code == 0
    spec = parse_spec((tmp_path / "x.json").read_bytes())
    assert spec.kind == "example.com/accel"
    assert sorted(device.name for device in spec.devices) == ["1", "gpu1"]
    (hook,) = spec.container_edits.hooks
    assert hook.args[:4] == ("nvidia-cdi-hook", "update-ldcache", "--ldconfig-path", "/sbin/ldconfig.real")


def test_driver_root_of_config_toml_counts_when_none_is_given(sim_root, tmp_path) -> None:
    root = sim_root("t4", gpus=1)
    config = tmp_path / "config.toml"
    config.write_text(f'[nvidia-container-cli]\nroot = "{root}"\n')
    spec = parse_spec(run("--config", config).stdout)
    assert all(mount.host_path.startswith(str(root)) for mount in spec.container_edits.mounts)
    other = sim_root("t4", gpus=1)
    again = parse_spec(run("--config", config, "--driver-root", other).stdout)
    assert all(mount.host_path.startswith(str(other)) for mount in again.container_edits.mounts)
    assert main(["kgpu", "cdi", "generate", "--config", str(tmp_path / "absent.toml")]) == 2
    # The toolkit's own places for it count too, and what is no regular file never fills memory.
    own = tmp_path / "nvidia-container-runtime/config.toml"
    own.parent.mkdir()
    own.write_text(config.read_text())
    for env in ({"NVIDIA_CTK_CONFIG_FILE_PATH": str(config)}, {"XDG_CONFIG_HOME": str(tmp_path)}):
        assert parse_spec(run(env=env).stdout) == spec
    assert main(["kgpu", "cdi", "generate", "--config", "/dev/zero"]) == 2


@pytest.mark.parametrize(
    "case",
    [
        (["--mode", "nvmm"], 'did you mean "nvml"'),
        (["--device-id", "9"], 'there is no device "9"'),
        (["--feature-flag", "x"], 'there is no feature flag "x"'),
        (["--hooks", "--enable-hook", "all"], "can't be enabled at once"),
        (["--hooks"], "there is no nvidia-cdi-hook"),
        (["--library-search-path", "usr/lib"], "not absolute"),
        (["--max-cdi-version", "0.3.0"], "needs CDI 0.5.0"),
        (["--mode", "imex"], "mode imex found nothing"),
        (["--mode", "csv"], "can be read"),
    ],
)
def test_obstacles_exit_with_two_in_three_parts(sim_root, tmp_path, monkeypatch, capsys, case) -> None:
    arguments, message = case
    monkeypatch.setenv("KGPU_HOST_ROOT", str(tmp_path))
    assert main(["kgpu", "cdi", "generate", "--root", str(sim_root("t4", gpus=1)), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "to do:" in told
    assert "Traceback" not in told


def test_every_option_is_in_the_help_with_its_meaning() -> None:
    text = run("--help").stdout
    for row in OPTIONS:
        assert row.flags[0] in text
        assert row.help.endswith(".")


def test_as_nvidia_ctk_the_config_is_an_option_of_the_program(sim_root, tmp_path, capsys) -> None:
    root = sim_root("t4", gpus=1)
    config = tmp_path / "config.toml"
    config.write_text(f'[nvidia-container-cli]\nroot = "{root}"\n')
    assert main(["nvidia-ctk", "--config", str(config), "cdi", "generate", "--class", "gpu"]) == 0
    spec = parse_spec(capsys.readouterr().out)
    assert spec.container_edits.mounts[0].host_path.startswith(str(root))


def test_a_second_file_with_the_same_devices_is_told(sim_root, tmp_path) -> None:
    root = sim_root("t4", gpus=1)
    first, second = tmp_path / "cdi/a.yaml", tmp_path / "cdi/b.json"
    read = {"NVIDIA_CTK_CDI_SPEC_DIRS": f"{tmp_path}/none,{tmp_path}/cdi"}
    assert "also in" not in run("--root", root, "--output", first, env=read).stderr
    assert "also in" not in run("--root", root, "--output", first, env=read).stderr
    assert "also in" not in run("--root", root, "--output", second).stderr  # no runtime reads this folder
    assert f"3 devices are also in {first}" in run("--root", root, "--output", second, env=read).stderr


def test_one_device_is_one(sim_root, tmp_path) -> None:
    words = ("--root", sim_root("t4", gpus=1), "--device-name-strategy", "index", "--no-all-device")
    assert f"{tmp_path}/a.yaml: 1 device of nvidia.com/gpu" in run(*words, "--output", tmp_path / "a.yaml").stderr


@pytest.mark.parametrize(
    "case",
    [
        (["--driver-root", "/nowhere/driver"], "/nowhere/driver is not there", "correct --driver-root"),
        (["--dev-root", "/etc/passwd"], "/etc/passwd is no folder", "correct --dev-root"),
        (["--output", "json"], "--output json names the file to write", "use -o json"),
        (["-o", "x.yaml"], "-o x.yaml: -o says how", "--output x.yaml"),
        (["-o", "yaml"], "'yaml' is not one of", "--help"),
    ],
)
def test_a_word_in_the_wrong_place_is_explained(case, tmp_path, monkeypatch, capsys) -> None:
    words, what, remedy = case
    monkeypatch.chdir(tmp_path)
    assert main(["kgpu", "cdi", "generate", *words]) == 2
    told = capsys.readouterr().err
    assert what in told.splitlines()[0]
    assert remedy in told
    assert list(tmp_path.iterdir()) == []


def test_a_root_without_a_driver_says_nothing_of_dockers_runtime(tmp_path, capsys) -> None:
    assert main(["kgpu", "cdi", "generate", "--mode", "nvml", "--driver-root", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--driver-root" in told
    assert "docker" not in told


def test_nothing_promises_what_allow_incomplete_does_not_do(sim_root, tmp_path, capsys) -> None:
    root, target = sim_root("t4", gpus=1), tmp_path / "nvidia.yaml"
    (root / "dev/nvidia-uvm").unlink()
    words = ["kgpu", "cdi", "generate", "--root", str(root), "--output", str(target)]
    assert main(words) == 2
    assert "write the spec without it by --allow-incomplete" in capsys.readouterr().err
    assert main([*words, "--allow-incomplete"]) == 0
    spec = parse_spec(target.read_bytes())
    assert "all" in [device.name for device in spec.devices]  # the devices stay
    assert "/dev/nvidia-uvm" not in [node.path for node in spec.container_edits.device_nodes]
