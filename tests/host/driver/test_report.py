"""The report: everything looked for, what is missing and what that breaks."""

from __future__ import annotations

from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.model import DriverReport, Item, Search
from kgpu.host.root import DriverRoot
from tests.host.driver import roots


def whole(tmp_path) -> DriverReport:
    roots.ubuntu(tmp_path)
    roots.nodes(tmp_path)
    search = Search(sys=tmp_path / "sys", proc=tmp_path / "proc")
    return find_driver_files(DriverRoot.at(tmp_path), search=search).report


def test_every_found_item_says_where_and_every_missing_one_why(tmp_path) -> None:
    report = whole(tmp_path)
    assert {"node", "library", "binary", "firmware", "ipc", "config", "xorg", "params"} == {
        i.kind for i in report.items
    }
    for item in report.items:
        assert item.path if item.found and item.kind != "params" else item.found or item.why


def test_what_is_missing_says_what_that_breaks(tmp_path) -> None:
    report = whole(tmp_path)
    items = {item.name: item for item in report.items}
    assert report.version == roots.VERSION
    assert report.folders == ("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/vdpau")
    assert items["libnvidia-encode"].path == f"/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.{roots.VERSION}"
    assert "NVDEC" in items["libnvcuvid"].note()
    assert not items["libnvcuvid"].found


def test_notes_leave_out_what_many_nodes_lack() -> None:
    rows = (
        Item(kind="node", name="a", found=False, why="a is gone", breaks="all", essential=True),
        Item(kind="node", name="b", found=False, why="b is gone", breaks="some", optional=True),
        Item(kind="node", name="c", found=False, why="c is gone"),
        Item(kind="node", name="d", found=True, path="/d"),
    )
    report = DriverReport(items=rows)
    assert list(report.notes()) == ["a is gone: all"]
    assert [item.name for item in report.missing()] == ["a", "b", "c"]
    assert [item.name for item in report.missing(essential=True)] == ["a"]
