"""``kgpu runtime`` and ``nvidia-ctk runtime configure`` from the outside, on hosts in temporary folders."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError
from kgpu.cli.main import main
from kgpu.cli.runtime import peer, runtime

CONFIG = '# mine\nversion = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "x"\n'
RUNC = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "host/etc/containerd").mkdir(parents=True)
    (tmp_path / "host/etc/containerd/config.toml").write_text(CONFIG)
    return tmp_path / "host"


def run(root: Path, *words: str, command=runtime):
    words = (*words, "--root", str(root), "--state-dir", str(root.parent / "state"))
    return CliRunner().invoke(command, words, catch_exceptions=False)


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_configure_and_back(root) -> None:
    before = files(root)
    first = run(root, "configure", "--engine-version", "2.1.4")
    assert first.exit_code == 0
    assert first.stdout.splitlines()[:2] == [
        "wrote /etc/containerd/conf.d/99-nvidia.toml: runtime handlers and CDI in a file of kgpu's own",
        "wrote /etc/containerd/config.toml: reads /etc/containerd/conf.d/99-nvidia.toml",
    ]
    assert "note: containerd reads its config when it is restarted" in first.stderr
    again = run(root, "configure", "--engine-version", "2.1.4", "-o", "json")
    assert json.loads(again.stdout)["changed"] is False
    shown = json.loads(run(root, "status", "-o", "json").stdout)
    assert shown[0]["handlers"].keys() >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert shown[0]["cdi"] is True
    text = run(root, "status").stdout
    assert text.splitlines()[0] == "containerd: /run/containerd/containerd.sock"
    assert "handlers:  nvidia, nvidia-cdi, nvidia-legacy" in text
    assert run(root, "unconfigure").exit_code == 0
    assert files(root) == before


def test_dry_run_prints_a_diff_and_changes_nothing(root) -> None:
    before = files(root)
    result = run(root, "configure", "--dry-run")
    assert '+imports = ["/etc/containerd/conf.d/*.toml"]' in result.stdout.splitlines()
    assert "--- /dev/null" in result.stdout.splitlines()
    assert files(root) == before
    run(root, "configure")
    after = files(root)
    assert "+++ /dev/null" in run(root, "unconfigure", "--dry-run").stdout.splitlines()
    assert files(root) == after


def test_flags_of_the_replaced_program(root) -> None:
    result = run(
        root, "configure", "--runtime=containerd", "--config=/etc/containerd/config.toml", "--drop-in-config=",
        "--nvidia-runtime-name=gpu", "--nvidia-runtime-path=/opt/runc", "--nvidia-set-as-default", "--cdi.enabled",
        "--config-source=command", "--nvidia-runtime-hook-path=/x",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "a dump would freeze every default" in result.stderr
    assert "warning: --nvidia-runtime-hook-path has no effect, because containers get their devices" in result.stderr
    assert "--config-source has no effect" not in result.stderr
    engine = tomllib.loads(files(root)["etc/containerd/config.toml"])["plugins"]["io.containerd.grpc.v1.cri"]
    assert engine["enable_cdi"] is True
    assert engine["containerd"]["default_runtime_name"] == "gpu"
    assert engine["containerd"]["runtimes"] == {
        "gpu": {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/opt/runc"}}
    }


def test_nvidia_ctk_adds_one_runtime_and_prints_whole_files(root) -> None:
    result = run(root, "--runtime", "containerd", "--dry-run", command=peer)
    assert result.exit_code == 0
    drop_in, _, top = result.stdout.partition("# mine\n")
    runtimes = tomllib.loads(drop_in)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert set(runtimes) == {"nvidia"}
    assert tomllib.loads(top)["imports"] == ["/etc/containerd/conf.d/*.toml"]
    (root / "etc/docker").mkdir()
    (root / "etc/docker/daemon.json").write_text('{"features": {"x": true}}')
    assert run(root, command=peer).exit_code == 0
    data = json.loads(files(root)["etc/docker/daemon.json"])
    assert data == {"features": {"x": True, "cdi": True}, "runtimes": {"nvidia": {"path": "runc", "args": []}}}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("configure", "--runtime", "containered"), 'did you mean "containerd"'),
        (("configure", "--config", "config.toml"), "isn't an absolute path"),
        (("configure", "--drop-in-config", "x.toml"), "isn't an absolute path"),
        (("configure", "--runtime", "docker", "--drop-in-config", "/x.json"), "Docker reads no drop-in"),
        (("configure", "--config-mode", "oci-hook"), "no config mode oci-hook"),
        (("configure", "--config-source", "dump"), "no config source"),
        (("configure", "--engine-version", "two"), "isn't a version"),
        (("configure", "--nvidia-runtime-name", "a b"), "is no name of a runtime"),
        (("configure", "--nvidia-runtime-path", "runc"), "isn't an absolute path"),
        (("configure", "--dry-run=perhaps"), "neither true nor false"),
        (("configure", "--restart", "sigkill"), "no restart mode"),
        (("unconfigure", "--runtime", "podman"), "no container engine"),
    ],
)
def test_wrong_input_is_explained_in_three_parts(words, what, root, capsys) -> None:
    before = files(root)
    assert main(["kgpu", "runtime", *words, "--root", str(root), "--state-dir", str(root.parent / "state")]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "expected:" in said
    assert "to do:" in said
    assert files(root) == before


@pytest.mark.parametrize("engine", ["containerd", "crio", "docker"])
def test_nvidia_ctk_adds_to_what_is_there(root, engine) -> None:
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/crun").touch()
    before = files(root)

    def handlers() -> dict[str, str]:
        [row] = json.loads(run(root, "status", "--runtime", engine, "-o", "json").stdout)
        return {**row["handlers"], "default": row["default"]}

    assert run(root, "configure", "--runtime", engine, "--set-as-default", "true").exit_code == 0
    first = handlers()
    assert first.keys() >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert first["default"] == "nvidia"
    words = ("--runtime", engine, "--nvidia-runtime-name", "mine", "--runtime-path", "/usr/bin/crun")
    assert run(root, *words, command=peer).exit_code == 0
    assert handlers() == {**first, "mine": "/usr/bin/crun"}
    assert run(root, *words, command=peer).exit_code == 0
    assert handlers() == {**first, "mine": "/usr/bin/crun"}
    assert run(root, "unconfigure", "--runtime", engine).exit_code == 0
    assert files(root) == before


def test_unconfigure_leaves_what_another_toolkit_has_added(root) -> None:
    (root / "etc/docker").mkdir()
    theirs = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}'
    (root / "etc/docker/daemon.json").write_text(theirs)
    (root / "etc/containerd/config.toml").write_text(
        f'{CONFIG}{CRI}.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    )
    before = files(root)
    for engine in ("docker", "containerd"):
        assert "nothing to change" in run(root, "unconfigure", "--runtime", engine).stdout
    assert files(root) == before
    # By name it goes, as whoever has lost kgpu's memory may want.
    assert run(root, "unconfigure", "--runtime", "docker", "--nvidia-runtime-name", "nvidia").exit_code == 0
    assert json.loads(files(root)["etc/docker/daemon.json"]) == {"runtimes": {}}


CRI = '[plugins."io.containerd.grpc.v1.cri".containerd'


@pytest.mark.parametrize(
    ("engine", "path", "text", "named"),
    [
        ("containerd", "containerd/config.toml", f"version = 2\n{CRI}]\nruntimes = ['x']\n", "containerd.runtimes"),
        ("containerd", "containerd/config.toml", f"version = 2\n{CRI}.runtimes]\nrunc = 'x'\n", "runtimes.runc"),
        ("containerd", "containerd/config.toml", f"version = 2\n{CRI}]\ndefault_runtime_name = []\n", "default_ru"),
        ("containerd", "containerd/config.toml", f"version = 2\n{CRI}.runtimes.runc]\noptions = 1\n", "runc.options"),
        ("crio", "crio/crio.conf", "[crio.runtime.runtimes]\ncrun = 'x'\n", "crio.runtime.runtimes.crun"),
        ("crio", "crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = 'x'\n", "cdi_spec_dirs"),
        ("docker", "docker/daemon.json", '{"cdi-spec-dirs": 3}', "cdi-spec-dirs"),
        ("docker", "docker/daemon.json", '{"runtimes": {"a": 3}}', "runtimes.a"),
    ],
)
def test_settings_of_another_kind_are_named(root, engine, path, text, named) -> None:
    file = root / "etc" / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        run(root, "configure", "--runtime", engine)
    assert str(file.relative_to(root)) in caught.value.what
    assert named in caught.value.what
    [row] = json.loads(run(root, "status", "--runtime", engine, "-o", "json").stdout)
    assert named in row["problem"]
    assert file.read_text() == text


def test_a_pattern_that_containerd_takes_for_a_path_imports_nothing(root) -> None:
    (root / "etc/containerd/config.toml").write_text(
        'version = 2\nimports = ["/etc/containerd/conf.d/?9-nvidia.toml"]\n'
    )
    assert run(root, "configure").exit_code == 0
    imports = tomllib.loads(files(root)["etc/containerd/config.toml"])["imports"]
    assert imports == ["/etc/containerd/conf.d/?9-nvidia.toml", "/etc/containerd/conf.d/*.toml"]


def test_a_host_without_engine(tmp_path, capsys) -> None:
    status = run(tmp_path / "none", "status")
    assert (status.stdout, status.exit_code) == ("no container engine was found on this host\n", 3)
    assert main(["kgpu", "runtime", "configure", "--root", str(tmp_path / "none")]) == 2
    assert "no container engine was found" in capsys.readouterr().err


def test_a_broken_config_is_named_and_left(root, capsys) -> None:
    path = root / "etc/containerd/config.toml"
    path.write_text("version = \n")
    assert main(["kgpu", "runtime", "configure", "--root", str(root), "--state-dir", str(root.parent / "s")]) == 2
    assert "/etc/containerd/config.toml isn't valid TOML" in capsys.readouterr().err
    assert path.read_text() == "version = \n"
    status = run(root, "status")
    assert status.exit_code == 1
    assert "isn't valid TOML" in status.stdout
    assert status.stderr.startswith("kgpu: /etc/containerd/config.toml isn't valid TOML")
    assert [line.partition(":")[0].strip() for line in status.stderr.splitlines()[-2:]] == ["expected", "to do"]
    assert run(root, "status", "-o", "json").exit_code == 1


def test_status_takes_what_it_is_told_of_the_engine(root) -> None:
    with (root / "etc/containerd/config.toml").open("a") as file:
        file.write(RUNC)
    assert run(root, "configure", "--engine-version", "2.1.4").exit_code == 0
    told = run(root, "status", "--engine-version", "2.1.4", "--socket", "/run/other.sock")
    assert told.stdout.splitlines()[0] == "containerd 2.1.4: /run/other.sock"
    # What was written for a containerd that merges tables is read in that way where the version isn't known.
    handlers = "  handlers:  runc, nvidia, nvidia-cdi, nvidia-legacy"
    for words in ((), ("--engine-version", "2.1.4")):
        assert handlers in run(root, "status", *words).stdout.splitlines()
    assert handlers not in run(root, "status", "--engine-version", "2.0.5").stdout.splitlines()
    other = run(root, "status", "--drop-in-config", "/etc/containerd/conf.d/10-mine.toml", "-o", "json")
    assert json.loads(other.stdout)[0]["dropIn"] == "/etc/containerd/conf.d/10-mine.toml"


def test_the_memory_is_on_the_hosts_own_disk(root) -> None:
    words = ("--root", str(root))
    before = files(root)
    assert CliRunner().invoke(runtime, ("configure", *words)).exit_code == 0
    assert [path for path in files(root) if path.startswith("var/lib/kgpu/engines/") and "record.json" in path]
    assert CliRunner().invoke(runtime, ("unconfigure", *words)).exit_code == 0
    assert {path: text for path, text in files(root).items() if not path.startswith("var/lib/kgpu/")} == before


def test_unconfigure_gives_back_every_engine_that_is_remembered(root, tmp_path) -> None:
    (root / "etc/docker").mkdir()
    (root / "etc/docker/daemon.json").write_text("{}")
    (root / "opt").mkdir()
    (root / "opt/other.toml").write_text(CONFIG)
    before = files(root)
    left = run(root, "unconfigure")
    assert "containerd: nothing to change" in left.stdout
    assert "docker was left alone: name an engine with --runtime" in left.stderr
    assert run(root, "configure", "--runtime", "docker").exit_code == 0
    assert run(root, "configure", "--runtime", "containerd", "--config", "/opt/other.toml").exit_code == 0
    done = run(root, "unconfigure", "-o", "json")
    assert [(row["engine"], row["changed"]) for row in json.loads(done.stdout)] == [("docker", True)]
    assert "kgpu has also changed /etc/containerd/conf.d/99-nvidia.toml, /opt/other.toml, of no engine" in done.stderr
    assert run(root, "configure", "--runtime", "docker").exit_code == 0
    assert run(root, "configure", "--runtime", "containerd").exit_code == 0
    both = run(root, "unconfigure", "--dry-run", "-o", "json")
    assert {row["engine"] for row in json.loads(both.stdout)} == {"docker", "containerd"}
    assert run(root, "unconfigure").exit_code == 0
    assert run(root, "unconfigure", "--runtime", "containerd", "--config", "/opt/other.toml").exit_code == 0
    assert files(root) == before


def test_one_engine_that_cannot_be_given_back_does_not_keep_the_others(root, capsys) -> None:
    (root / "etc/docker").mkdir()
    (root / "etc/docker/daemon.json").write_text("{}")
    for engine in ("docker", "containerd"):
        assert run(root, "configure", "--runtime", engine).exit_code == 0
    [memory] = (root.parent / "state/engines").glob("containerd-*/record.json")
    memory.write_text("{")
    words = ["--root", str(root), "--state-dir", str(root.parent / "state")]
    assert main(["kgpu", "runtime", "unconfigure", *words]) == 2
    told = capsys.readouterr()
    assert "memory of this engine's original config" in told.err
    assert "wrote /etc/docker/daemon.json" in told.out
    assert files(root)["etc/docker/daemon.json"] == "{}"


def test_help_under_the_replaced_programs_name_has_its_defaults() -> None:
    said = " ".join(CliRunner().invoke(peer, ("--help",)).stdout.split())
    assert "Default: docker." in said
    assert "Default: nvidia." in said
    assert "nvidia-legacy" not in said
    assert "the kubelet uses" not in said


@pytest.mark.parametrize(("version", "template"), [("2.0.5", True), ("", True), ("2.1.4", False)])
def test_k3s_with_a_containerd_that_replaces_tables_is_configured_by_its_template(tmp_path, version, template) -> None:
    folder = tmp_path / "host/var/lib/rancher/k3s/agent/etc/containerd"
    folder.mkdir(parents=True)
    cri = "plugins.'io.containerd.cri.v1.runtime'"
    (folder / "config.toml").write_text(
        f'version = 3\nimports = ["{str(folder).removeprefix(str(tmp_path / "host"))}/config-v3.toml.d/*.toml"]\n'
        f"[{cri}.cni]\nbin_dir = '/var/lib/rancher/k3s/data/abc/bin'\n"
        f"[{cri}.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
    )
    root = tmp_path / "host"
    before = files(root)
    words = ("--engine-version", version) if version else ()
    assert run(root, "configure", *words).exit_code == 0
    new = {path.rpartition("containerd/")[2]: text for path, text in files(root).items() if path not in before}
    assert list(new) == (["config-v3.toml.tmpl"] if template else ["config-v3.toml.d/99-nvidia.toml"])
    assert "bin_dir" not in "".join(new.values())
    assert "runtimes.nvidia-cdi" in "".join(new.values())
    assert run(root, "unconfigure").exit_code == 0
    assert files(root) == before
