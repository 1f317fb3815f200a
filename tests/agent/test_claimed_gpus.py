"""The device plugin offers no GPU of which a claim has a part."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from kgpu.agent.claimed_gpus import ClaimedGpus
from kgpu.agent.ordered import OrderedGpus
from kgpu.dra.records import ClaimRecord, ClaimRecords, RecordedDevice


def record(uid: str, gpu: str, *, admin: bool = False, boot: str = "boot-1") -> ClaimRecord:
    device = RecordedDevice(request="r", pool="n", device="gpu-0", gpu=gpu, admin=admin)
    return ClaimRecord(uid=uid, namespace="team", name=uid, boot=boot, devices=(device,))


@contextlib.asynccontextmanager
async def run(ledger: ClaimedGpus) -> AsyncIterator[None]:
    task = asyncio.create_task(ledger.run())
    try:
        await asyncio.sleep(0.05)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_plugin_withholds_what_claims_have(tmp_path: Path) -> None:
    folder, ordered = tmp_path / "plugins/gpu.nvidia.com/claims", OrderedGpus()
    ledger = ClaimedGpus(ordered, (tmp_path / "none", folder), boot="boot-1")
    records = ClaimRecords(folder, boot="boot-1", report=lambda _: None)
    assert ledger.withdrawn == {}
    async with run(ledger):
        records.put(record("looks", "GPU-2", admin=True))
        assert ledger.withdrawn == {}
        for step, wanted in (
            (lambda: records.put(record("one", "GPU-1")), {"GPU-1": "claim team/one has it"}),
            (lambda: ordered.set({"GPU-3": "reset"}), {"GPU-1": "claim team/one has it", "GPU-3": "reset"}),
            (lambda: records.drop("one"), {"GPU-3": "reset"}),
            (ordered.set, {}),
        ):
            revision = ledger.revision
            step()
            await asyncio.wait_for(ledger.changed(revision), 60)
            assert ledger.withdrawn == wanted
        records.put(record("two", "GPU-1"))
        assert ledger.withdrawn == {"GPU-1": "claim team/two has it"}, "an allocation asks at any moment"


async def test_a_change_that_the_folders_time_does_not_show_is_seen(tmp_path: Path) -> None:
    """A file system counts time in ticks of some milliseconds."""
    records = ClaimRecords(tmp_path, boot="boot-1", report=lambda _: None)
    records.put(record("one", "GPU-1"))
    ledger = ClaimedGpus(None, (tmp_path,), boot="boot-1")
    then = tmp_path.stat()  # noqa: ASYNC240 - nothing else runs
    async with run(ledger):
        revision = ledger.revision
        records.drop("one")
        os.utime(tmp_path, ns=(then.st_atime_ns, then.st_mtime_ns))
        await asyncio.wait_for(ledger.changed(revision), 60)
        assert ledger.withdrawn == {}


async def test_records_of_another_boot_or_that_are_damaged_withhold_nothing(tmp_path: Path) -> None:
    records = ClaimRecords(tmp_path, boot="boot-0", report=lambda _: None)
    records.put(record("old", "GPU-1", boot="boot-0"))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    assert ClaimedGpus(None, (tmp_path,), boot="boot-1").withdrawn == {}
