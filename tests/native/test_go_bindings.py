"""An unmodified Go program on the simulated driver: what go-nvml and go-nvlib see is what the Python bindings see."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.hw.simulator.state import DriverState
from tests.hw.simulator.nvml_process import Nvml

RootMaker = Callable[..., Path]
MODULE = Path(__file__).with_name("gonvml")


@pytest.fixture(scope="session")
def walker() -> Path:
    """The Go program, built once per content; skipped where it can't be built, unless everything is required."""
    skip = pytest.fail if os.environ.get("KGPU_REQUIRE_REAL") == "1" else pytest.skip
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        skip("there is no Go toolchain")
    digest = hashlib.sha256(b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kgpu" / "tests"
    program = cache / f"gonvml-{digest.hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = program.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [go, "build", "-p", "2", "-o", str(temporary), "."],
            cwd=MODULE,
            env={**os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": "-w", "GOFLAGS": "-mod=mod"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            skip(f"the Go program can't be built: {done.stderr.strip()[-400:]}")
        temporary.rename(program)
    return program


def start(walker: Path, root: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "KGPU_HW_STATE": str(root / "state"),
        "LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu"),
    }
    return subprocess.Popen(
        [str(walker), *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def view(walker: Path, root: Path) -> dict[str, Any]:
    out, errors = start(walker, root).communicate(timeout=60)
    assert out, errors
    decoded: dict[str, Any] = json.loads(out)
    return decoded


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "profile",
    ["hgx-h100", "dgx-a100-40g", "hgx-b200", "gb200", "rtx-pro-6000", "a30", "l4", "t4", "geforce", "dgx-1-v100"],
)
def test_go_and_python_see_the_same_devices(walker: Path, sim_root: RootMaker, profile: str) -> None:
    root = sim_root(profile)
    seen = view(walker, root)
    with Nvml(root) as n:
        n.run("hs = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]")
        assert seen["Driver"] == n("nvmlSystemGetDriverVersion()")
        assert seen["Cuda"] == n("nvmlSystemGetCudaDriverVersion()")
        assert seen["Cycles"] == 3
        for key, call in (
            ("UUID", "nvmlDeviceGetUUID(h)"),
            ("Name", "nvmlDeviceGetName(h)"),
            ("Minor", "nvmlDeviceGetMinorNumber(h)"),
            ("MemoryBytes", "nvmlDeviceGetMemoryInfo(h).total"),
            ("Capability", "'%d.%d' % tuple(nvmlDeviceGetCudaComputeCapability(h))"),
            ("Levels", "[nvmlDeviceGetTopologyCommonAncestor(h, other) for other in hs]"),
        ):
            assert [gpu[key] for gpu in seen["GPUs"]] == n(f"[(lambda h: {call})(h) for h in hs]"), key
        for gpu in seen["GPUs"]:
            assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", gpu["BusID"])
            assert not gpu["MigEnabled"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("profile", "make", "names"),
    [
        ("hgx-h100", ((19, 0), (14, 1), (9, 2)), ["1g.10gb", "2g.20gb", "3g.40gb"]),
        ("dgx-a100-40g", ((20, 0), (15, 0), (5, 0)), ["1g.5gb+me", "1g.10gb", "1c.4g.20gb"]),
        ("a30", ((14, 0), (5, 1)), ["1g.6gb", "2g.12gb"]),
        ("hgx-b200", ((19, 0), (9, 2)), ["1g.23gb", "3g.90gb"]),
        ("rtx-pro-6000", ((47, 0), (66, 1)), ["1g.24gb+gfx", "2g.48gb-me"]),
    ],
)
def test_go_names_mig_profiles_as_the_driver_does(
    walker: Path, sim_root: RootMaker, profile: str, make: tuple[tuple[int, int], ...], names: list[str]
) -> None:
    root = sim_root(profile, gpus=1)
    with Nvml(root) as n:
        n.run("h = nvmlDeviceGetHandleByIndex(0); nvmlDeviceSetMigMode(h, 1)")
        n.run(f"for p, c in {make!r}: nvmlGpuInstanceCreateComputeInstance(nvmlDeviceCreateGpuInstance(h, p), c)")
        (gpu,) = view(walker, root)["GPUs"]
        assert sorted(one["Profile"] for one in gpu["Slices"]) == sorted(names)
        n.run(f"ms = [nvmlDeviceGetMigDeviceHandleByIndex(h, k) for k in range({len(make)})]")
        assert [one["UUID"] for one in gpu["Slices"]] == n("[nvmlDeviceGetUUID(m) for m in ms]")
        assert [one["MemoryMiB"] for one in gpu["Slices"]] == n("[nvmlDeviceGetAttributes(m).memorySizeMB for m in ms]")
        for one in gpu["Slices"]:
            assert one["DeviceName"].endswith(f"MIG {one['Profile']}")
            assert one["ParentUUID"] == gpu["UUID"]


@pytest.mark.timeout(600)
def test_go_gets_xids(walker: Path, sim_root: RootMaker) -> None:
    root = sim_root("hgx-h100", gpus=4)
    process = start(walker, root, "-wait", "2")
    try:
        assert process.stderr is not None
        assert process.stderr.readline().strip() == "ready"
        with DriverState.open(root / "state") as state:
            state.inject_xid(3, 79)
            state.inject_xid(1, 48)
            uuids = [state.gpu(i).uuid.decode() for i in range(4)]
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    events = json.loads(out)["Events"]
    assert [(event["UUID"], event["Xid"]) for event in events] == [(uuids[3], 79), (uuids[1], 48)]


@pytest.mark.timeout(600)
def test_every_symbol_that_the_go_bindings_call_is_exported(walker: Path, sim_libs: Path) -> None:
    """A missing symbol would not be an error code there but the end of the process."""
    out = subprocess.run(
        ["nm", "-D", "--defined-only", str(sim_libs / "libnvidia-ml.so.1")], check=True, capture_output=True, text=True
    )
    have = {line.split()[2] for line in out.stdout.splitlines()}
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", str(walker)], check=True, capture_output=True, text=True
    )
    linked = {line.split()[-1] for line in undefined.stdout.splitlines() if " nvml" in line}
    assert linked - have == set()
    assert len(linked) > 400
