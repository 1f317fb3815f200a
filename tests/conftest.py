"""Fixtures that several folders share: the simulated driver's libraries, and a simulated driver root."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kgpu.formats.names import ENV_RUN_DIR
from tests import budget
from tests.cpu_watch import CpuWatch
from tests.machine_watch import MachineWatch

budget.profile()


# Objects that are made before the collector looks at the young ones. Tests make large trees (JSON, YAML, syntax) beside
# those of tens of thousands of collected tests, and at Python's 700 half of the time to make them was the collector's.
COLLECT_AFTER = 50_000


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    config.pluginmanager.register(MachineWatch())
    config.pluginmanager.register(CpuWatch())


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: nothing is found by looking through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_run_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Agents of tests that see this machine's / as their host's keep out of its /run, and kubectl of what it remembers
    of other clusters that had the same address.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_RUN_DIR, str(tmp_path_factory.mktemp("run")))
        patch.setenv("KUBECACHEDIR", str(tmp_path_factory.mktemp("kubectl")))
        yield


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command that is run within the test sets up the log for a standard error that is gone afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def nothing_flushed_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails where a file is flushed to disk by the thread that runs an event loop: a disk that hangs would stop every role."""
    flush, where = os.fsync, []

    def watched(descriptor: int) -> None:
        if asyncio._get_running_loop() is not None:
            where.append("".join(traceback.format_stack(limit=6)[:-1]))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    yield
    assert "\n".join(where[:1]) == ""


@pytest.fixture(scope="session")
def sim_libs() -> Path:
    """The folder with libnvidia-ml.so.1, libcuda.so.1, nvidia-smi and vectoradd; built once per content."""
    from kgpu.hw.simulator.build import native_dir

    return native_dir()


@pytest.fixture
def sim_root(tmp_path: Path, sim_libs: Path) -> Callable[..., Path]:
    """`sim_root("hgx-h100", gpus=2, ...)` makes a simulated driver root below tmp_path and returns its path."""
    from kgpu.hw.simulator.create import create_root

    made = 0

    def make(profile: str = "hgx-h100", **options: object) -> Path:
        nonlocal made
        made += 1
        return Path(create_root(profile, tmp_path / f"root{made}", **options))

    return make
