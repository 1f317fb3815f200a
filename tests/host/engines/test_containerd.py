"""containerd's config: what goes where for each version, and what is refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from kgpu.base.errors import ConfigError
from kgpu.host.engines import rules
from kgpu.host.engines.containerd import MARK, effective, layout_of
from kgpu.host.engines.edited import lookup
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace, RuntimeHandler
from kgpu.host.engines.toml_edit import TomlFile

MAIN, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
PLACE = EnginePlace(engine=Engine.CONTAINERD, flavour="containerd", config=MAIN, drop_in=DROP_IN, version=(2, 1, 4))
OLD = replace(PLACE, version=(1, 7, 30))
CRI2, CRI3 = ("plugins", "io.containerd.grpc.v1.cri"), ("plugins", "io.containerd.cri.v1.runtime")
KUBEADM = b"""\
# from the package
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.9" # keep
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/home/kubernetes/bin"
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
    endpoint = ["https://mirror"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
"""


def applied(
    place: EnginePlace, files: dict[str, bytes | None], wanted: EngineOffer | None = None
) -> dict[str, bytes | None]:
    plan = rules.configure(place, wanted or EngineOffer(), files)
    return {**files, **{change.path: change.after for change in plan.changes}}


def parsed(files: dict[str, bytes | None], path: str) -> dict:
    return tomllib.loads((files[path] or b"").decode())


def test_a_merging_containerd_gets_a_drop_in_of_kgpus_keys_alone() -> None:
    after = applied(PLACE, {MAIN: KUBEADM, DROP_IN: None})
    runtime = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    assert parsed(after, DROP_IN) == {
        "version": 2,
        "plugins": {
            "io.containerd.grpc.v1.cri": {
                "enable_cdi": True,
                "containerd": {"runtimes": dict.fromkeys(("nvidia", "nvidia-cdi", "nvidia-legacy"), runtime)},
            }
        },
    }
    assert after[DROP_IN].startswith(MARK.encode())
    added = b'imports = ["/etc/containerd/conf.d/*.toml"]\n'
    assert after[MAIN] == KUBEADM.replace(b"version = 2\n", b"version = 2\n" + added)


def test_an_older_containerd_gets_a_copy_of_what_is_configured_and_no_defaults() -> None:
    after = applied(OLD, {MAIN: KUBEADM, DROP_IN: None})
    section = lookup(parsed(after, DROP_IN), CRI2)
    assert section["cni"] == {"bin_dir": "/home/kubernetes/bin"}
    assert section["registry"]["mirrors"]["docker.io"]["endpoint"] == ["https://mirror"]
    assert section["sandbox_image"] == "registry.k8s.io/pause:3.9"
    assert section["enable_cdi"] is True
    assert set(section) == {"sandbox_image", "cni", "registry", "containerd", "enable_cdi"}


def test_the_version_of_the_drop_in_is_the_main_files_own() -> None:
    for version, cri in ((2, CRI2), (3, CRI3)):
        after = applied(PLACE, {MAIN: f"version = {version}\n".encode(), DROP_IN: None})
        assert parsed(after, DROP_IN)["version"] == version
        assert "nvidia" in lookup(parsed(after, DROP_IN), (*cri, "containerd", "runtimes"))


@pytest.mark.parametrize("main", [b"", None, b"# nothing but a comment\n"])
@pytest.mark.parametrize(("place", "version"), [(PLACE, 3), (OLD, 2), (replace(PLACE, version=None), 2)])
def test_an_empty_config_gets_a_version_that_the_engine_knows(main, place, version) -> None:
    after = applied(place, {MAIN: main, DROP_IN: None})
    assert parsed(after, MAIN) == {"version": version, "imports": ["/etc/containerd/conf.d/*.toml"]}
    assert parsed(after, DROP_IN)["version"] == version


def test_containerd_1_with_a_file_without_version_is_edited_where_it_reads() -> None:
    """Such a containerd imports nothing of another version: a drop-in would silently do nothing (defect 2)."""
    main = b'[plugins.cri.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    plan = rules.configure(OLD, EngineOffer(), {MAIN: main, DROP_IN: None})
    (change,) = plan.changes
    data = tomllib.loads(change.after.decode())
    assert change.path == MAIN
    assert "version" not in data
    assert data["plugins"]["cri"]["containerd"]["runtimes"]["nvidia"] == {"runtime_type": "io.containerd.runc.v2"}
    assert data["plugins"]["cri"]["enable_cdi"] is True
    assert any("version 1" in note for note in plan.notes)


def test_containerd_2_with_a_file_without_version_gets_a_drop_in_in_version_3() -> None:
    """It ignores CRI settings of such a file, and version 2 in a drop-in would bring them to life."""
    main = b'disabled_plugins = []\n[plugins.cri]\nsandbox_image = "x"\n'
    after = applied(PLACE, {MAIN: main, DROP_IN: None})
    assert parsed(after, DROP_IN)["version"] == 3
    assert "version" not in parsed(after, MAIN)


def test_the_main_file_itself_on_request() -> None:
    after = applied(replace(PLACE, drop_in=""), {MAIN: KUBEADM}, EngineOffer(default="nvidia"))
    assert set(after) == {MAIN}
    section = lookup(parsed(after, MAIN), CRI2)
    assert section["containerd"]["default_runtime_name"] == "nvidia"
    assert section["containerd"]["runtimes"]["nvidia"]["options"] == {"SystemdCgroup": True}
    assert after[MAIN].startswith(b"# from the package\nversion = 2\n")
    assert b'registry.k8s.io/pause:3.9" # keep\n' in after[MAIN]


def test_a_folder_that_is_imported_already_needs_no_line() -> None:
    for imports in (
        '["/etc/containerd/conf.d/*.toml"]',
        '["conf.d/*.toml"]',
        '["/etc/containerd/conf.d/99-nvidia.toml"]',
    ):
        main = f"version = 3\nimports = {imports}\n".encode()
        assert applied(PLACE, {MAIN: main, DROP_IN: None})[MAIN] == main


def test_files_that_nobody_imported_stay_so() -> None:
    stranger = "/etc/containerd/conf.d/50-old.toml"
    after = applied(PLACE, {MAIN: b"version = 3\n", DROP_IN: None, stranger: b"version = 3\n"})
    assert parsed(after, MAIN)["imports"] == ["/etc/containerd/conf.d/99-nvidia*.toml"]


def test_existing_imports_are_kept() -> None:
    after = applied(PLACE, {MAIN: b'version = 3\nimports = [\n  "/etc/x.toml", # mine\n]\n', DROP_IN: None})
    assert parsed(after, MAIN)["imports"] == ["/etc/x.toml", "/etc/containerd/conf.d/*.toml"]
    assert b"# mine" in after[MAIN]


def test_settings_of_imported_files_count() -> None:
    other = "/etc/containerd/conf.d/10-runtime.toml"
    files = {
        MAIN: b'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n[plugins."io.containerd.grpc.v1.cri"]\na = 1\n',
        other: b'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "crun"\n'
        b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]\nruntime_type = "io.containerd.runc.v2"\n'
        b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]\nBinaryName = "/usr/bin/crun"\n',
        DROP_IN: None,
    }
    new = lookup(parsed(applied(PLACE, files), DROP_IN), CRI2)
    assert new["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/crun"
    assert "a" not in new
    # Before 2.1 the other file's table has replaced the main one's, so only that is copied.
    old = lookup(parsed(applied(OLD, files), DROP_IN), CRI2)
    assert old["containerd"]["default_runtime_name"] == "crun"
    assert "a" not in old


def test_a_later_file_that_would_undo_it_is_named() -> None:
    later = "/etc/containerd/conf.d/zz.toml"
    files = {
        MAIN: b'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
        later: b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\na = 1\n',
        DROP_IN: None,
    }
    with pytest.raises(ConfigError, match=r"zz\.toml replaces"):
        rules.configure(OLD, EngineOffer(), files)
    assert rules.configure(PLACE, EngineOffer(), files).changes


def test_a_runtime_left_by_another_tool_points_at_the_engines_own() -> None:
    main = (
        b'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
        b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
        b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
        b'BinaryName = "/usr/bin/nvidia-container-runtime"\nSystemdCgroup = true\n'
    )
    for place in (PLACE, OLD, replace(PLACE, drop_in="")):
        files = {MAIN: main, **({DROP_IN: None} if place.drop_in else {})}
        now = rules.state(place, applied(place, files))
        assert now.handlers["nvidia"] == ""
        assert now.default == "nvidia"


def test_a_binary_and_overrides() -> None:
    wanted = EngineOffer(
        handlers=(RuntimeHandler("gpu", "/opt/crun"),),
        annotations=("cdi.k8s.io/",),
        options={"options": {"SystemdCgroup": False}},
    )
    table = lookup(
        parsed(applied(PLACE, {MAIN: KUBEADM, DROP_IN: None}, wanted), DROP_IN), (*CRI2, "containerd", "runtimes")
    )
    assert table == {
        "gpu": {
            "runtime_type": "io.containerd.runc.v2",
            "container_annotations": ["cdi.k8s.io/*"],
            "options": {"SystemdCgroup": False, "BinaryName": "/opt/crun"},
        }
    }


def test_cdi_folders_are_added_to_those_that_are_named() -> None:
    main = b'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/opt/cdi", "/run/cdi"]\nenable_cdi = false\n'
    section = lookup(parsed(applied(PLACE, {MAIN: main, DROP_IN: None}), DROP_IN), CRI3)
    assert section["cdi_spec_dirs"] == ["/opt/cdi", "/run/cdi", "/etc/cdi"]
    assert section["enable_cdi"] is True


def test_version_3_has_cdi_on_and_is_not_told_again() -> None:
    section = lookup(parsed(applied(PLACE, {MAIN: b"version = 3\n", DROP_IN: None}), DROP_IN), CRI3)
    assert set(section) == {"containerd"}


@pytest.mark.parametrize(
    ("main", "what"),
    [
        (b'version = "2"\n', "version is '2'"),
        (b"version = true\n", "version is True"),
        (b'version = 2\nimports = "x"\n', "imports is 'x'"),
        (b"version = 2\nimports = [1]\n", "imports is"),
        (b'version = 2\nplugins."io.containerd.grpc.v1.cri" = 1\n', "isn't a table"),
        (b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\ncdi_spec_dirs = "x"\n', "cdi_spec_dirs is"),
        (b"version = 2\n[plugins", "isn't valid TOML"),
    ],
)
def test_what_containerd_would_not_load_is_refused(main, what) -> None:
    with pytest.raises(ConfigError) as caught:
        rules.configure(PLACE, EngineOffer(), {MAIN: main, DROP_IN: None})
    assert what in caught.value.what
    assert caught.value.expected
    assert caught.value.remedy


def test_notes_say_what_a_person_must_know() -> None:
    disabled = rules.configure(PLACE, EngineOffer(), {MAIN: b'disabled_plugins = ["cri"]\n', DROP_IN: None})
    assert any("disables the CRI plugin" in note for note in disabled.notes)
    ancient = rules.configure(replace(PLACE, version=(1, 6, 8)), EngineOffer(), {MAIN: b"version = 2\n", DROP_IN: None})
    assert any("1.6.8 has no CDI" in note for note in ancient.notes)


def test_circles_of_imports_end() -> None:
    files = {MAIN: f'version = 3\nimports = ["{MAIN}", "/etc/containerd/b.toml"]\n'.encode(),
             "/etc/containerd/b.toml": f'imports = ["{MAIN}"]\n'.encode(), DROP_IN: None}  # fmt: skip
    after = applied(PLACE, files)
    main = TomlFile(after[MAIN], MAIN)
    assert "nvidia" in lookup(effective(PLACE, after, layout_of(PLACE, main)), ("containerd", "runtimes"))
