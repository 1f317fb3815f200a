"""The state's layout: one schema for C and Python, and the state file's own rules."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HwError
from kgpu.hw.simulator import schema
from kgpu.hw.simulator.build import find_compiler, source_dir
from kgpu.hw.simulator.load_model import head, settle
from kgpu.hw.simulator.state import EVENT_XID, DriverState
from tests.budget import tries


def test_the_header_is_current() -> None:
    assert (source_dir() / "include" / "kgpu_state.h").read_text() == schema.header_text(), (
        "run: python -m kgpu.hw.simulator.schema > native/include/kgpu_state.h"
    )


def test_a_c_compiler_agrees_on_every_offset(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text('#include "kgpu_state.h"\n')
    subprocess.run(
        [find_compiler(), "-std=c11", "-I", str(source_dir() / "include"), "-c", str(source), "-o", "/dev/null"],
        check=True,
    )


def test_no_field_needs_padding() -> None:
    for struct in schema.STRUCTS:
        cls = schema.CLASSES[struct.name]
        end = 0
        for field in struct.fields:
            member = getattr(cls, field.name)
            assert member.offset == end, f"{struct.name}.{field.name} has a hole before it"
            end = member.offset + member.size
        assert ctypes.sizeof(cls) == end, f"{struct.name} ends in padding"


def test_names_are_unique() -> None:
    for struct in schema.STRUCTS:
        names = [field.name for field in struct.fields]
        assert len(names) == len(set(names)), struct.name


def one_gpu(state: DriverState) -> None:
    state.view.gpu_count = 1
    state.view.gpu[0].used = 1
    state.view.gpu[0].power_idle_mw, state.view.gpu[0].power_max_mw = 100_000, 500_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "state"
    DriverState.create(target, fill=one_gpu).close()
    return target


def test_what_one_maps_another_sees(path: Path) -> None:
    with DriverState.open(path) as a, DriverState.open(path) as b:
        with a.locked():
            a.gpu(0).name = b"NVIDIA Test"
        assert b.gpu(0).name == b"NVIDIA Test"
        assert b.view.generation > 1


def test_a_failed_creation_leaves_the_old_file(path: Path) -> None:
    before = path.read_bytes()

    def broken(_: DriverState) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError):
        DriverState.create(path, fill=broken)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["state"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a state file"),
        (b"hello", "not a state file"),
        (b"\0" * schema.STATE_SIZE, "not a state file"),
        (schema.MAGIC.to_bytes(8, "little") + (99).to_bytes(4, "little") + b"\0" * 100, "version 99"),
        (
            schema.MAGIC.to_bytes(8, "little")
            + schema.VERSION.to_bytes(4, "little")
            + schema.STATE_SIZE.to_bytes(4, "little"),
            "bytes",
        ),
    ],
)
def test_a_bad_file_is_a_three_part_error(tmp_path: Path, content: bytes, why: str) -> None:
    target = tmp_path / "state"
    target.write_bytes(content)
    with pytest.raises(HwError) as caught:
        DriverState.open(target)
    assert why in caught.value.what
    assert "kgpu lab hw create" in caught.value.remedy


def test_missing_and_unreadable_files_are_three_part_errors(tmp_path: Path) -> None:
    for bad in (tmp_path / "missing", tmp_path):
        with pytest.raises(HwError, match="can't be used"):
            DriverState.open(bad)


def test_too_many_gpus_are_refused(path: Path) -> None:
    with DriverState.open(path) as state:
        state.view.gpu_count = 65
    with pytest.raises(HwError, match="65 GPUs"):
        DriverState.open(path)


@given(data=st.binary(max_size=64), at=st.integers(0, schema.STATE_SIZE - 64))
@tries(60)
def test_random_damage_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    target = tmp_path_factory.mktemp("damage") / "state"
    DriverState.create(target, fill=one_gpu).close()
    with target.open("r+b") as file:
        file.seek(at)
        file.write(data)
    try:
        with DriverState.open(target) as state:
            for index in range(state.gpu_count):
                state.processes(index)
    except HwError:
        pass


def _hold_and_die(path: Path, ready: object) -> None:
    state = DriverState.open(path)
    with state.locked():
        ready.set()  # type: ignore[attr-defined]
        os.kill(os.getpid(), 9)


def test_the_lock_dies_with_its_holder(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold_and_die, args=(path, ready))
    holder.start()
    assert ready.wait(60)
    holder.join(60)
    with DriverState.open(path) as state, state.locked():
        state.bump()


ADD = """
import sys
from kgpu.hw.simulator.state import DriverState
with DriverState.open(sys.argv[1]) as state:
    for _ in range(300):
        with state.locked():
            state.gpu(0).pcie_replays = state.gpu(0).pcie_replays + 1
"""


def test_writers_exclude_each_other(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", ADD, str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    with DriverState.open(path) as state:
        assert state.gpu(0).pcie_replays == 900


def test_events_are_numbered_and_kept_in_a_ring(path: Path) -> None:
    with DriverState.open(path) as state:
        futex = state.view.event_futex
        numbers = [state.inject_xid(0, 31) for _ in range(300)]
        assert numbers == list(range(1, 301))
        assert state.view.event_futex == futex + 300
        assert state.view.event[(300 - 1) % schema.C["EVENT_RING"]].seq == 300
        assert state.view.event[0].type == EVENT_XID
        assert state.gpu(0).xid_count == 300


def test_unknown_gpus_are_three_part_errors(path: Path) -> None:
    with DriverState.open(path) as state:
        for bad in (-1, 1, 64):
            with pytest.raises(HwError, match=f"no GPU {bad} "):
                state.gpu(bad)


@given(steps=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 100)), max_size=20))
def test_busy_time_and_energy_only_grow_and_stay_plausible(steps: list[tuple[int, int]]) -> None:
    gpu = schema.CLASSES["kg_gpu"]()
    gpu.power_idle_mw, gpu.power_max_mw = 100_000, 500_000
    now, begin = 10**18, 10**18
    gpu.load_since_ns = now
    for wait_ms, percent in steps:
        busy, energy = gpu.busy_ns, gpu.energy_mj
        now += wait_ms * 1_000_000
        level = settle(gpu, now)
        gpu.load_set = percent
        head(gpu, now, level)
        assert gpu.busy_ns >= busy
        assert gpu.energy_mj >= energy
        assert 0 <= gpu.load_prev <= 100_000
    elapsed = now - begin
    assert gpu.busy_ns <= elapsed
    seconds = elapsed / 1e9
    assert 100_000 * seconds - len(steps) - 1 <= gpu.energy_mj <= 500_000 * seconds + 1
