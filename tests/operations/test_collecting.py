"""The process that collects a node's evidence: real ones that work, fail, hang, flood, eat memory and are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from kgpu.base.errors import HostError
from kgpu.operations.collecting import CollectingProcess, CollectLimits

FAR = CollectLimits(seconds=60, output=100_000)
# Whoever has started a process limits it a moment later.
EATS = """
import resource
while resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
    time.sleep(0.01)
x = bytearray(300 * 1024 * 1024)
"""


def program(code: str) -> tuple[str, ...]:
    """A program in place of kgpu; its arguments are in ``sys.argv[1:]``."""
    return sys.executable, "-c", f"import os, sys, time\n{code}"


async def collect(code: str, limits: CollectLimits = FAR, **more: str) -> bytes:
    return await CollectingProcess(command=program(code), limits=limits, **more).collect("n1")


async def test_it_is_what_the_process_writes() -> None:
    asked = await collect("print(' '.join(sys.argv[1:]), end='')", namespace="gpu-operator", kubeconfig="/k")
    assert asked.decode() == (
        "--node n1 --max-bytes 100000 -o - --namespace gpu-operator --kubeconfig /k"
    )  # fmt: skip


async def test_the_command_is_kgpus_own() -> None:
    """Without a cluster it says what is wrong in its own words."""
    process = CollectingProcess(kubeconfig="/nowhere/kubeconfig")
    with pytest.raises(HostError, match=r"exit code 2: .*/nowhere/kubeconfig"):
        await process.collect("n1")


@pytest.mark.parametrize(
    ("code", "limits", "why"),
    [
        ("print('no right to list pods', file=sys.stderr); sys.exit(2)", FAR, "exit code 2: no right to list pods"),
        ("pass", FAR, "exit code 0"),
        ("os.kill(os.getpid(), 9)", FAR, "signal 9 has ended it"),
        ("time.sleep(600)", CollectLimits(seconds=0.5), "it was not done after 0.5 s"),
        ("os.close(1); os.close(2); time.sleep(600)", CollectLimits(seconds=0.5), "it was not done after 0.5 s"),
        ("[sys.stdout.write('x' * 4096) for _ in iter(int, 1)]", FAR, "it has written more than 100000 bytes"),
        (EATS, CollectLimits(memory=128 * 1024 * 1024), "MemoryError"),
    ],
    ids=["it says why", "nothing", "killed", "hangs", "hangs without a word", "floods", "eats memory"],
)
async def test_whatever_goes_wrong_is_told_in_one_line(code: str, limits: CollectLimits, why: str) -> None:
    with pytest.raises(HostError) as raised:
        await collect(code, limits)
    assert why in raised.value.what
    assert "\n" not in raised.value.one_line()


async def test_no_pipe_stays_open_of_a_process_that_writes_too_much() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(HostError, match="more than 100 bytes"):
            await collect("print('x' * 10_000_000)", CollectLimits(output=100))
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(HostError, match="it can't be started: No such file or directory"):
        await CollectingProcess(command=("/nowhere/kgpu",)).collect("n1")


async def test_much_on_stderr_neither_blocks_it_nor_is_kept() -> None:
    code = "sys.stderr.write('x' * 3_000_000 + ' the end'); print('archive', end='')"
    assert await collect(code) == b"archive"
    with pytest.raises(HostError) as raised:
        await collect(f"{code}; sys.exit(1)")
    assert len(raised.value.what) < 500


def _ended(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # by which of the two is a matter of the moment
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


def _in(pids: Path) -> list[int]:
    return [int(line) for line in pids.read_text().split("\n")[:-1]] if pids.exists() else []


async def _started(pids: Path) -> list[int]:
    until = time.monotonic() + 60
    while len(known := _in(pids)) < 2:
        assert time.monotonic() < until, "the process has not started"
        await asyncio.sleep(0.02)
    return known


async def _nothing_left_of(processes: list[int]) -> None:
    """Who was killed takes a moment to end, and nobody waits for a child's child."""
    until = time.monotonic() + 60
    while not all(map(_ended, processes)):
        assert time.monotonic() < until, "a process is left"
        await asyncio.sleep(0.02)


async def test_a_call_that_is_cancelled_while_its_process_starts_ends(pids: Path) -> None:
    code = f"child = os.fork(); open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    for turns in range(6):
        work = asyncio.create_task(collect(code))
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.3 if turns else 0)  # noqa: ASYNC251 - the loop has no turn, as on a machine with much to do
        work.cancel()
        _, pending = await asyncio.wait([work], timeout=30)
        assert not pending
    await _nothing_left_of(_in(pids))


@pytest.mark.parametrize("cancelled", [True, False])
async def test_nothing_of_it_stays(pids: Path, cancelled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the process nor what it has started, whether it is cancelled or takes too long."""
    really, limits = asyncio.timeout, list[asyncio.Timeout]()

    def limit(seconds: float | None) -> asyncio.Timeout:
        limits.append(really(seconds))
        return limits[-1]

    monkeypatch.setattr(asyncio, "timeout", limit)
    code = f"child = os.fork(); open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    work = asyncio.create_task(collect(code, CollectLimits(seconds=3600)))
    known = await _started(pids)
    if cancelled:
        work.cancel()
    else:
        limits[0].reschedule(0.0)  # the hour is over
    with pytest.raises(asyncio.CancelledError if cancelled else HostError):
        await work
    await _nothing_left_of(known)
