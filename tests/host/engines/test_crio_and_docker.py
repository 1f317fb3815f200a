"""CRI-O's and Docker's configs: what is added, from where it is taken, what is refused."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from kgpu.base.errors import ConfigError
from kgpu.host.engines import rules
from kgpu.host.engines.model import Engine, EngineOffer, EnginePlace, RuntimeHandler

CRIO = EnginePlace(
    engine=Engine.CRIO, flavour="crio", config="/etc/crio/crio.conf",
    drop_in="/etc/crio/crio.conf.d/99-nvidia.conf", oci=("/usr/bin/crun", "/usr/sbin/runc"),
)  # fmt: skip
DOCKER = EnginePlace(engine=Engine.DOCKER, flavour="docker", config="/etc/docker/daemon.json")
PACKAGE = "/etc/crio/crio.conf.d/10-crio.conf"


def crio(files: dict[str, bytes | None], wanted: EngineOffer | None = None, place: EnginePlace = CRIO) -> dict:
    (change,) = rules.configure(place, wanted or EngineOffer(), files).changes
    assert change.path == (place.drop_in or place.config)
    return tomllib.loads(change.after.decode())["crio"]["runtime"]


def test_handlers_take_the_default_runtimes_table() -> None:
    files = {PACKAGE: b'[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\n'
             b'runtime_path = "/usr/libexec/crio/crun"\nmonitor_path = "/usr/libexec/crio/conmon"\n'}  # fmt: skip
    table = {
        "runtime_path": "/usr/libexec/crio/crun",
        "monitor_path": "/usr/libexec/crio/conmon",
        "runtime_type": "oci",
    }
    assert crio(files) == {"runtimes": dict.fromkeys(("nvidia", "nvidia-cdi", "nvidia-legacy"), table)}


@pytest.mark.parametrize(
    ("version", "path"), [(None, "/usr/bin/crun"), ((1, 30, 4), "/usr/sbin/runc"), ((1, 31, 0), "/usr/bin/crun")]
)
def test_without_any_table_the_hosts_own_binary(version, path) -> None:
    section = crio({}, place=replace(CRIO, version=version))
    assert section["runtimes"]["nvidia"] == {"runtime_path": path, "runtime_type": "oci"}


def test_no_oci_runtime_at_all_is_refused() -> None:
    """CRI-O would look for a program called nvidia, and not start."""
    with pytest.raises(ConfigError, match="no OCI runtime"):
        crio({}, place=replace(CRIO, oci=()))


def test_the_drop_in_has_no_more_than_was_asked_for() -> None:
    wanted = EngineOffer(
        handlers=(RuntimeHandler("nvidia", "/opt/runc"),), default="nvidia", cdi_dirs=("/etc/cdi", "/opt/cdi")
    )
    assert crio({CRIO.config: b"[crio.runtime]\npids_limit = 4\n"}, wanted) == {
        "default_runtime": "nvidia",
        "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi", "/opt/cdi"],
        "runtimes": {"nvidia": {"runtime_path": "/opt/runc", "runtime_type": "oci"}},
    }


def test_a_later_file_of_any_name_that_replaces_a_handler_is_named() -> None:
    later = "/etc/crio/crio.conf.d/99-z"
    with pytest.raises(ConfigError, match=r"99-z replaces crio\.runtime\.runtimes\.nvidia"):
        crio({later: b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'})


@pytest.mark.parametrize("raw", [b"[crio", b"crio = 1\n", b"[crio]\nruntime = 2\n", b"[crio.runtime]\nruntimes = []\n"])
def test_a_broken_file_of_crio_is_refused(raw) -> None:
    if raw == b"crio = 1\n":
        assert crio({PACKAGE: raw})["runtimes"]  # not a table of CRI-O's: nothing to take from it
        return
    with pytest.raises(ConfigError) as caught:
        crio({PACKAGE: raw})
    assert PACKAGE in caught.value.what


def docker(text: str | None, wanted: EngineOffer | None = None) -> str:
    raw = None if text is None else text.encode()
    plan = rules.configure(DOCKER, wanted or EngineOffer(handlers=(RuntimeHandler("nvidia"),)), {DOCKER.config: raw})
    return (plan.changes[0].after if plan.changes else raw or b"").decode()


def test_other_features_stay() -> None:
    """Defect 1: they were dropped when CDI was turned on."""
    data = json.loads(docker('{"features": {"buildkit": true, "containerd-snapshotter": false}}'))
    assert data["features"] == {"buildkit": True, "containerd-snapshotter": False, "cdi": True}


def test_order_and_shape_stay() -> None:
    text = '{\n  "log-driver": "x",  "labels": [1,\n 2],\n  "runtimes": {"kata": {"path": "/kata"}}\n}\n'
    assert docker(text) == (
        '{\n  "log-driver": "x",  "labels": [1,\n 2],\n'
        '  "runtimes": {"kata": {"path": "/kata"}, "nvidia": {"path": "runc", "args": []}},\n'
        '  "features": {\n    "cdi": true\n  }\n}\n'
    )


@pytest.mark.parametrize("text", [None, "", "  \n", "{}", "\ufeff{}"])
def test_an_empty_file(text) -> None:
    data = json.loads(docker(text).removeprefix("\ufeff"))
    assert data == {"runtimes": {"nvidia": {"path": "runc", "args": []}}, "features": {"cdi": True}}


def test_the_default_runtimes_entry_is_copied() -> None:
    text = '{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun", "runtimeArgs": ["--x"]}}}'
    data = json.loads(docker(text, EngineOffer(handlers=(RuntimeHandler("nvidia"),), default="nvidia")))
    assert data["runtimes"]["nvidia"] == {"path": "/usr/bin/crun", "runtimeArgs": ["--x"], "args": []}
    assert data["default-runtime"] == "nvidia"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "isn't valid JSON"),
        ("[]", "holds a list"),
        ('{"a": 1, "a": 2}', 'the key "a" is there twice'),
        ('{"runtimes": []}', "runtimes isn't an object"),
        ('{"features": true}', "features isn't an object"),
        ('{"x": ' + "[" * 100000 + "]" * 100000 + "}", "nests values too deeply"),
        ('{"x": "' + "y" * (1 << 20) + '"}', "has 1048"),
        ("{} {}", "isn't valid JSON"),
    ],
)
def test_a_broken_daemon_json_is_refused(text, what) -> None:
    with pytest.raises(ConfigError) as caught:
        docker(text)
    assert what in caught.value.what
    assert caught.value.remedy


def test_docker_has_no_drop_in() -> None:
    with pytest.raises(ConfigError, match="Docker reads no drop-in"):
        rules.configure(replace(DOCKER, drop_in="/etc/docker/x.json"), EngineOffer(), {})


@pytest.mark.parametrize(
    ("version", "text", "on"),
    [
        (None, "{}", False),
        ((28, 2, 2), "{}", False),
        ((28, 3, 0), "{}", True),
        ((28, 3, 0), '{"features": {"cdi": false}}', False),
        (None, '{"features": {"cdi": true}}', True),
    ],
)
def test_cdi_is_on_by_default_from_28_3(version, text, on) -> None:
    state = rules.state(replace(DOCKER, version=version), {DOCKER.config: text.encode()})
    assert state.cdi is on
    assert bool(state.notes) is ("cdi" in text)
