"""The verdict file: what is written is read, and nothing else counts as one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from kgpu.base.errors import HostError
from kgpu.hw.verdicts import STALE_SECONDS, GpuVerdict, MemoryVerdicts, VerdictFile, Verdicts, verdicts_path

LOST = GpuVerdict(uuid="GPU-1", index=3, action="reboot", withdraws=True, causes=("xid:79",), what="Xid 79: lost")
WELL = GpuVerdict(uuid="GPU-2", index=4)


class Now:
    def __init__(self) -> None:
        self.uptime = 100.0

    def __call__(self) -> float:
        return self.uptime


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def file(tmp_path: Path, now: Now) -> VerdictFile:
    return VerdictFile(tmp_path / "run" / "verdicts.json", boot="b1", uptime=now, look_seconds=0.05)


def test_what_is_written_is_read(file: VerdictFile) -> None:
    assert file.read() is None
    file.write((LOST, WELL), node="n1", problems=("kernel log: no",))
    found = file.read()
    assert found is not None
    assert (found.gpus, found.node, found.problems) == ((LOST, WELL), "n1", ("kernel log: no",))
    assert found.by_uuid["GPU-1"].healthy is False
    assert found.by_uuid["GPU-2"].healthy is True


def test_it_holds_for_its_boot_and_a_minute(file: VerdictFile, now: Now) -> None:
    file.write((LOST,))
    other = VerdictFile(file.path, boot="b2", uptime=now)
    assert other.read() is None
    assert VerdictFile(file.path, boot="", uptime=now).read() is None
    now.uptime += STALE_SECONDS
    assert file.read() is not None
    now.uptime += 0.1
    assert file.read() is None
    now.uptime = 50.0  # written in the future: of another boot, whatever its id
    assert file.read() is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"boot":"b1"}', b'{"boot":1,"uptime":100}',
        b'{"boot":"b1","uptime":100,"gpus":[{"uuid":5}]}', b'{"boot":"b1","uptime":100,"format":2}',
        b'{"boot":"b1","uptime":"NaN"}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_verdict_file_is_none(file: VerdictFile, content: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    assert file.read() is None


def test_only_a_file_is_read(file: VerdictFile, tmp_path: Path) -> None:
    file.path.parent.mkdir()
    os.mkfifo(file.path)  # would hold whoever opens it
    assert file.read() is None
    file.path.unlink()
    good = tmp_path / "elsewhere"
    good.write_bytes(msgspec.json.encode(Verdicts(boot="b1", uptime=100.0)))
    file.path.symlink_to(good)
    assert file.read() is None
    file.path.unlink()
    file.path.mkdir()
    assert file.read() is None


def test_a_later_release_may_say_more(file: VerdictFile) -> None:
    file.write((LOST,))
    tree = msgspec.json.decode(file.path.read_bytes())
    tree["more"] = tree["gpus"][0]["more"] = 1
    file.path.write_bytes(msgspec.json.encode(tree))
    assert file.read() is not None


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="can't be written"):
        VerdictFile(tmp_path / "file" / "verdicts.json").write(())


async def test_followers_hear_of_changes_and_of_the_end(file: VerdictFile, now: Now) -> None:
    heard = file.follow()

    async def withdrawn() -> list[str] | None:
        async with asyncio.timeout(60):
            found = await anext(heard)
        return None if found is None else [one.uuid for one in found.gpus if one.withdraws]

    assert await withdrawn() is None
    file.write((LOST, WELL))
    assert await withdrawn() == ["GPU-1"]
    file.write((LOST, WELL))  # says the same again
    file.write((WELL,))
    assert await withdrawn() == []
    now.uptime += STALE_SECONDS + 1
    assert await withdrawn() is None
    file.write((LOST,))
    assert await withdrawn() == ["GPU-1"]
    file.remove()
    assert await withdrawn() is None
    await heard.aclose()  # type: ignore[attr-defined]


async def test_the_fake_is_followed_alike() -> None:
    source, heard = MemoryVerdicts(), []
    async for found in source.follow():
        heard.append(found and [one.uuid for one in found.gpus])
        if len(heard) == 1:
            source.put(LOST)
        elif len(heard) == 2:
            source.end()
        else:
            break
    assert heard == [None, ["GPU-1"], None]


def test_the_place_is_below_the_hosts_root_or_where_it_is_said() -> None:
    assert verdicts_path("/host", {}) == Path("/host/run/kgpu/health/verdicts.json")
    assert verdicts_path("/host", {"KGPU_RUN_DIR": "/run/kgpu"}) == Path("/run/kgpu/health/verdicts.json")
