"""The real containerd loads every result, and sees nothing else changed than kgpu's keys."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given

from kgpu.host.engines import rules
from kgpu.host.engines.edited import lookup
from kgpu.host.engines.model import NVIDIA_HANDLERS, Engine, EnginePlace
from kgpu.toolkit.engine.programs import parse_version
from tests.budget import tries
from tests.host.engines.documents import containerd_configs
from tests.host.engines.real_engine import containerd_binary, dump
from tests.host.engines.test_random_configs import V2, V3, WANTED, changed_leaves

CRI3 = ("plugins", "io.containerd.cri.v1.runtime")

RUNTIMES = ("containerd", "runtimes")
SETTINGS = {("enable_cdi",), ("cdi_spec_dirs",), ("containerd", "default_runtime_name")}


def version_of(binary: str):
    return parse_version(subprocess.run([binary, "--version"], capture_output=True, check=True).stdout.decode())


@pytest.mark.parametrize(("version", "plugin"), [(2, V2), (3, V3), (None, V3)])
@pytest.mark.parametrize("drop_in", [True, False])
def test_containerd_reads_what_was_meant(version, plugin, drop_in, tmp_path) -> None:
    binary = containerd_binary()
    main, own = tmp_path / "config.toml", tmp_path / "conf.d/99-nvidia.toml"
    own.parent.mkdir()
    place = EnginePlace(
        engine=Engine.CONTAINERD, flavour="containerd", config=str(main), drop_in=str(own) if drop_in else "",
        version=version_of(binary),
    )  # fmt: skip

    @tries(8, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(containerd_configs(version, plugin), WANTED)
    def check(config, wanted) -> None:
        _, text = config
        own.unlink(missing_ok=True)
        main.write_bytes(text.encode())
        before = dump(binary, main)
        files = {str(main): text.encode(), **({str(own): None} if drop_in else {})}
        plan = rules.configure(place, wanted, files)
        for change in plan.changes:
            Path(change.path).write_bytes(change.after or b"")
            assert dump(binary, main)  # each step loads
        after = dump(binary, main)
        runtimes = lookup(after, (*CRI3, "containerd", "runtimes"))
        default = lookup(before, (*CRI3, "containerd", "default_runtime_name"))
        donor = lookup(before, (*CRI3, "containerd", "runtimes"))[default]
        for name in NVIDIA_HANDLERS:
            assert runtimes[name]["runtime_type"] == donor["runtime_type"]
            for option in ("BinaryName", "SystemdCgroup"):
                ours, theirs = (table.get("options") or {} for table in (runtimes[name], donor))
                assert (ours.get(option) or "") == (theirs.get(option) or "")
        assert lookup(after, (*CRI3, "containerd", "default_runtime_name")) == (wanted.default or default)
        if wanted.cdi:
            assert lookup(after, (*CRI3, "enable_cdi")) is True
        for path in changed_leaves(before, after):
            if path != ("imports",):
                assert path[:2] == CRI3, path
                assert path[2:] in SETTINGS or (path[2:4] == RUNTIMES and path[4] in NVIDIA_HANDLERS), path
        for change in reversed(plan.changes):
            if change.before is None:
                Path(change.path).unlink()
            else:
                Path(change.path).write_bytes(change.before)
            assert dump(binary, main)
        assert dump(binary, main) == before

    check()
