"""Links to device nodes: made, corrected when majors change, never for what is no node of ours, failures told once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from kgpu.base.advice import Advice
from kgpu.host.dev_files import DriverNumbers, FakeDevFiles
from kgpu.host.dev_nodes import Numbers
from kgpu.toolkit.links import LinksContext, bring_in_line, run

MAJORS = {"nvidia": 195, "nvidia-uvm": 508}


def context(files: FakeDevFiles, tmp_path: Path, **given: object) -> LinksContext:
    told = {"majors": MAJORS, "gpu_minors": (0,), "cap_minors": {}}
    usual = {"report": lambda _: None, "facts": lambda: DriverNumbers(**told)}
    return LinksContext(host_root=tmp_path, driver_root="/", files=files, **{**usual, **given})


def a_node() -> FakeDevFiles:
    return FakeDevFiles(
        devices={
            "/dev/nvidia0": Numbers(195, 0),
            "/dev/nvidiactl": Numbers(195, 255),
            "/dev/nvidia-caps/nvidia-cap1": Numbers(234, 1),
            "/dev/nvidia-nvswitch0": Numbers(235, 0),
            "/dev/sda": Numbers(8, 0),
        }
    )


def test_every_node_has_its_link_and_missing_control_nodes_are_made(tmp_path: Path) -> None:
    files = a_node()
    bring_in_line(context(files, tmp_path))
    assert files.devices["/dev/nvidia-uvm"] == Numbers(508, 0)
    assert files.devices["/dev/nvidia-modeset"] == Numbers(195, 254)
    assert files.links["/dev/char/195:0"].endswith("nvidia0")
    assert files.links["/dev/char/508:1"].endswith("nvidia-uvm-tools")
    assert files.links["/dev/char/234:1"].endswith("nvidia-cap1")
    assert not {"/dev/char/235:0", "/dev/char/8:0"} & set(files.links)
    assert bring_in_line(context(files, tmp_path)) == ()


def test_no_node_is_made_where_that_is_switched_off_or_no_driver_is_loaded(tmp_path: Path) -> None:
    files = a_node()
    bring_in_line(context(files, tmp_path, control=False))
    assert "/dev/nvidia-uvm" not in files.devices
    empty = FakeDevFiles()
    assert bring_in_line(context(empty, tmp_path, facts=lambda: DriverNumbers({}, (), {}))) == ()
    assert not empty.devices


def test_links_follow_a_driver_whose_major_changed(tmp_path: Path) -> None:
    files = a_node()
    files.devices["/dev/nvidia-uvm"] = Numbers(508, 0)
    bring_in_line(context(files, tmp_path))
    later = DriverNumbers({"nvidia": 195, "nvidia-uvm": 511}, (0,), {})
    bring_in_line(context(files, tmp_path, facts=lambda: later))
    assert files.links["/dev/char/511:0"].endswith("nvidia-uvm")
    assert "/dev/char/508:0" not in files.links


class ReadOnly(FakeDevFiles):
    def put_link(self, path: str, target: str) -> None:
        del path, target
        raise OSError(30, "Read-only file system")


async def test_a_folder_that_can_not_be_written_is_told_once_and_the_role_goes_on(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    files = ReadOnly(devices={"/dev/nvidia0": Numbers(195, 0)})
    told: list[Advice] = []
    states: list[tuple[bool, str]] = []
    ctx = context(files, tmp_path, report=told.append, control=False)
    task = asyncio.create_task(run(ctx, lambda ready, reason: states.append((ready, reason))))
    try:
        async with asyncio.timeout(60):
            for number in range(2):
                while len(states) <= number:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)
                (tmp_path / "dev" / f"event{number}").touch()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert all(ready for ready, _ in states)
    assert "Read-only" in states[0][1]
    assert [one.reason for one in told] == ["DeviceLinksNotMade"]
