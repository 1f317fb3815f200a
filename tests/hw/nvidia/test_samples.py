"""The driver's buffer of samples, integrated: never more than the time that passed, whatever the buffer or the clock do."""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from dataclasses import dataclass, field

import pynvml
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.hw.nvidia import samples
from kgpu.hw.nvidia.codes import GPU_IS_LOST, NOT_FOUND, NOT_SUPPORTED
from kgpu.hw.nvidia.fallbacks import Nvml, NvmlError
from kgpu.hw.nvidia.samples import LONGEST_US, SAMPLE, SampleBuffers, integrate
from tests.budget import tries
from tests.hw.nvidia.stub import StubLibrary, target

UUID = "GPU-1"
SIXTH = 166_667
S = 1_000_000


@dataclass
class Driver:
    """A driver with a ring of samples and a wall clock that is not to be trusted; ``steady`` is the time that passes."""

    room: int = 100
    steady: int = 0
    wall: int = 1_800_000_000 * S
    ring: deque[tuple[int, int]] = field(default_factory=deque)
    code: int = 0
    kind: int = 1
    asked: list[int] = field(default_factory=list)

    def passes(self, us: int, percent: int, jump: int = 0) -> None:
        """So much time passes with that load, a sample at its end; then the clock jumps."""
        self.steady += us
        self.wall += us
        self.ring.append((self.wall, percent))
        while len(self.ring) > self.room:
            self.ring.popleft()
        self.wall += jump

    def get(self, _handle, kind, since, value_kind, count, array) -> int:
        assert kind == samples.GPU_UTILIZATION
        if self.code:
            return self.code
        if array is None:
            target(count).value = self.room
            return 0
        self.asked.append(since.value)
        rows = [row for row in self.ring if row[0] > since.value][: target(count).value]
        for place, (at, percent) in enumerate(rows):
            SAMPLE.pack_into(array, place * SAMPLE.size, at, percent)
        target(count).value, target(value_kind).value = len(rows), self.kind
        return 0 if rows else NOT_FOUND


def buffers(driver: Driver) -> SampleBuffers:
    stub = StubLibrary()
    stub.functions["nvmlDeviceGetSamples"] = driver.get
    return SampleBuffers(Nvml(stub, pynvml), lambda: driver.steady / S)


STRETCHES = st.lists(
    st.tuples(
        st.integers(1, 3 * S),  # to the sample
        st.integers(0, 140),  # what it says; more than 100 is none
        st.sampled_from((0, 0, 0, 0, 3600 * S, -3600 * S, -SIXTH, 90 * S)),  # the clock's jump
        st.booleans(),  # whether the buffer is read after it
    ),
    max_size=200,
)


@tries(200)
@given(stretches=STRETCHES, room=st.sampled_from((1, 3, 100)))
@example(stretches=[(SIXTH, 100, 0, True), (SIXTH, 100, -3600 * S, True), (SIXTH, 100, 0, True)], room=100)
def test_what_is_counted_is_at_most_what_has_passed(stretches, room: int) -> None:
    driver, counted = Driver(room=room), 0.0
    reader = buffers(driver)
    reader.read(None, UUID)
    began = driver.steady
    for us, percent, jump, read in stretches:
        driver.passes(us, percent, jump)
        found = reader.read(None, UUID) if read else None
        if found is not None:
            mean, peak, seconds = found
            assert 0 <= mean <= peak + 1e-9 <= 100 + 1e-9
            assert seconds > 0
            counted += seconds
    # Across a jump nobody knows how long the sample after it is about: no longer than the longest.
    jumps = sum(1 for _, _, jump, _ in stretches if jump)
    assert counted <= (driver.steady - began + jumps * LONGEST_US) / S + 1e-6


@tries(300)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40 * S), st.integers(-5, 130)), max_size=60), since=st.integers(0, 40 * S)
)
def test_samples_of_any_order_and_number_cover_the_time_since_at_most(rows, since: int) -> None:
    area, covered, peak = integrate([*rows, *rows], since)
    last = max((at for at, _ in rows), default=since)
    assert 0 <= covered <= max(0, last - since)
    assert 0 <= area <= 100 * covered
    assert (peak is None) == (covered == 0)
    assert peak is None or area <= peak * covered
    assert (area, covered, peak) == integrate(rows, since), "one that is there twice counts once"


def test_a_steady_driver_is_covered_whole_by_looks_that_follow_each_other() -> None:
    driver = Driver()
    reader = buffers(driver)
    driver.passes(SIXTH, 0)
    assert reader.read(None, UUID) is None, "the first begins"
    found = []
    for load in (0, 100, 50):
        for _ in range(60):
            driver.passes(SIXTH, load)
        found.append(reader.read(None, UUID))
    assert found == [(load, load, pytest.approx(10, abs=0.01)) for load in (0, 100, 50)]
    assert reader.read(None, UUID) is None, "nothing is newer"


def test_a_burst_between_two_looks_is_in_the_mean_and_the_peak() -> None:
    driver = Driver()
    reader = buffers(driver)
    driver.passes(SIXTH, 0)
    reader.read(None, UUID)
    for load in (0,) * 57 + (80,) * 3:
        driver.passes(SIXTH, load)
    mean, peak, _ = reader.read(None, UUID)
    assert (mean, peak) == (pytest.approx(4), 80)


def test_a_ring_that_was_overwritten_is_about_what_is_left() -> None:
    driver = Driver(room=100)
    reader = buffers(driver)
    driver.passes(SIXTH, 0)
    reader.read(None, UUID)
    for load in (100,) * 300 + (10,) * 100:
        driver.passes(SIXTH, load)
    mean, peak, seconds = reader.read(None, UUID)
    assert (mean, peak) == (pytest.approx(10), 10)
    assert 16 < seconds < 18


def test_a_clock_that_goes_back_costs_one_look() -> None:
    driver = Driver()
    reader = buffers(driver)
    driver.passes(SIXTH, 5)
    reader.read(None, UUID)
    driver.wall -= 3600 * S
    driver.ring.clear()
    driver.passes(SIXTH, 90)
    assert reader.read(None, UUID) is None
    driver.passes(SIXTH, 90)
    assert reader.read(None, UUID) == (90, 90, pytest.approx(SIXTH / S))


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NOT_FOUND, 999])
def test_what_a_gpu_does_not_have_is_asked_again_only_after_a_while(code: int) -> None:
    driver = Driver(code=code)
    reader = buffers(driver)
    assert [reader.read(None, UUID) for _ in range(3)] == [None] * 3
    driver.code = 0
    for _ in range(2):
        driver.passes(SIXTH, 20)
        reader.read(None, UUID)
    assert (driver.asked == []) == (code != NOT_FOUND)
    driver.steady += 61 * S
    for _ in range(2):
        driver.passes(SIXTH, 20)
        found = reader.read(None, UUID)
    assert found == (20, 20, pytest.approx(SIXTH / S, abs=0.01))


def test_a_lost_gpu_is_no_gpu_without_samples() -> None:
    with pytest.raises(NvmlError):
        buffers(Driver(code=GPU_IS_LOST)).read(None, UUID)


@pytest.mark.parametrize(("kind", "raw"), [(1, 25 | 7 << 40), (3, 25), (6, 25), (0, 0x4039000000000000)])
def test_samples_have_the_drivers_layout_and_types(kind: int, raw: int) -> None:
    assert SAMPLE.size == ctypes.sizeof(pynvml.c_nvmlSample_t)
    assert pynvml.NVML_GPU_UTILIZATION_SAMPLES == samples.GPU_UTILIZATION
    driver = Driver(kind=kind)
    reader = buffers(driver)
    for _ in range(2):
        driver.passes(SIXTH, raw)
        found = reader.read(None, UUID)
    assert found is not None
    assert found[1] == 25


def test_a_driver_without_the_call_has_no_samples() -> None:
    assert SampleBuffers(Nvml(StubLibrary(), pynvml), itertools.count).read(None, UUID) is None
