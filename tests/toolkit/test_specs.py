"""Reading spec files and folders as they may be on a node: broken, huge, hostile, writable by all; and its facts."""

from __future__ import annotations

import json
import os
import socket
import stat

import pytest

from kgpu.formats.cdi import dump_spec, parse_spec
from kgpu.host.dev_nodes import Numbers
from kgpu.toolkit import specs
from kgpu.toolkit.specs import MAX_BYTES, FakeNode, RealNode, SpecFacts, list_found, read_folders, read_spec

KIND = "vendor.com/class"


def text(*names: str, kind: str = KIND) -> str:
    devices = [{"name": name, "containerEdits": {"env": [f"N={name}"]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})


def put(folder, name: str, content: str | bytes, mode: int = 0o644):
    folder.mkdir(exist_ok=True, mode=0o755)
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_a_spec_is_read_with_its_names(tmp_path) -> None:
    found = read_spec(put(tmp_path, "a.json", text("0", "1")), 3)
    assert found.problem is None
    assert found.names == (f"{KIND}=0", f"{KIND}=1")
    assert (found.priority, found.open_to_all, found.ignored) == (3, False, False)


def test_folders_in_their_order_without_what_is_no_spec(tmp_path) -> None:
    static, dynamic = tmp_path / "etc", tmp_path / "run"
    put(static, "b.yaml", text("0"))
    put(static, "a.json", text("1"))
    put(static, "note.txt", "x")
    put(static, ".hidden.yaml", text("3"))  # a leading dot hides nothing from the runtimes' library
    put(static, ".b.yaml.swp", "x")
    put(dynamic, "c.yml", text("2"))
    found = read_folders([static, tmp_path / "none", dynamic])
    assert [(os.path.basename(spec.path), spec.priority) for spec in found] == [
        (".hidden.yaml", 0),
        ("a.json", 0),
        ("b.yaml", 0),
        ("c.yml", 2),
    ]
    assert found[0].names == (f"{KIND}=3",)
    assert found[3].ignored
    assert found[3].names == ()


def test_listing_says_what_does_not_count(tmp_path) -> None:
    put(tmp_path, "a.yaml", text("0", "1"))
    put(tmp_path, "b.yaml", text("1", "2"))
    put(tmp_path, "c.yml", text("3"))
    put(tmp_path, "d.json", "{")
    listing = list_found(read_folders([tmp_path]))
    assert listing.names == (f"{KIND}=0", f"{KIND}=2")
    assert len(listing.warnings) == 3
    assert any("d.json" in warning for warning in listing.warnings)
    assert any("c.yml is not read" in warning for warning in listing.warnings)
    assert any(f"{KIND}=1 can't be resolved" in warning for warning in listing.warnings)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "{a: " * 100_000,
        BOMB,
        "- " * 50_000,
        '{"cdiVersion": "0.5.0", "kind": "vendor.com/class", "devices": [' + "[]," * 100_000 + "[]]}",
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": "vendor.com/class",
                "devices": [{"name": "9" * 200_000, "containerEdits": {}}],
            }
        ),
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": "vendor.com/class",
                "devices": [],
                "containerEdits": {"hooks": [{"path": 1}]},
            }
        ),
        b"\xff\xfe\x00",
        "",
        "null",
        "3",
        "---\na: 1\n---\nb: 2\n",
        "!!python/object/apply:os.system ['true']",
    ],
    ids=[
        "seq",
        "json",
        "flow",
        "alias",
        "dash",
        "list",
        "digits",
        "types",
        "bytes",
        "empty",
        "null",
        "int",
        "two",
        "tag",
    ],
)
@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_hostile_content_is_a_result(tmp_path, content: str | bytes, name: str) -> None:
    found = read_spec(put(tmp_path, name, content))
    assert found.spec is None
    assert found.problem is not None
    assert len(str(found.problem)) < 500_000


def test_a_file_above_the_limit_is_not_read(tmp_path, monkeypatch) -> None:
    path = tmp_path / "big.json"
    with open(path, "wb") as file:
        file.truncate(MAX_BYTES + 1)
    found = read_spec(path)
    assert found.problem is not None
    assert "bytes" in found.problem.what
    monkeypatch.setattr(specs, "MAX_BYTES", len(text("0")))
    assert read_spec(put(tmp_path, "fits.json", text("0"))).spec is not None
    assert read_spec(put(tmp_path, "over.json", text("0") + " ")).spec is None


def test_what_is_no_file_never_blocks(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    os.symlink("loop.yaml", tmp_path / "loop.yaml")
    os.symlink("/dev/zero", tmp_path / "zero.yaml")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.yaml"))
        found = read_folders([tmp_path])
    assert len(found) == 5
    assert all(spec.problem is not None for spec in found)


def test_who_may_change_a_spec_may_change_containers(tmp_path) -> None:
    safe, open_file, open_folder, sticky = (tmp_path / name for name in ("safe", "file", "folder", "sticky"))
    put(safe, "a.json", text("0"))
    put(open_file, "a.json", text("0"), 0o666)
    put(open_folder, "a.json", text("0"))
    put(sticky, "a.json", text("0"))
    open_folder.chmod(0o777)
    sticky.chmod(0o1777)
    states = [spec.open_to_all for spec in read_folders([safe, open_file, open_folder, sticky])]
    assert states == [False, True, True, False]


# --- facts ---


@pytest.fixture(params=["fake", "real"])
def node(request, tmp_path) -> SpecFacts:
    if request.param == "fake":
        return FakeNode(kinds={"/usr/lib/lib.so": "file", "/usr/lib": "folder", "/usr/bin/hook": "program"},
                        drivers={"nvidia": 195}, version="570.133.20")  # fmt: skip
    put(tmp_path / "usr", "x", "")
    put(tmp_path / "usr/lib", "lib.so", "")
    put(tmp_path / "usr/bin", "hook", "", 0o755)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    put(tmp_path / "proc", "devices", "Character devices:\n195 nvidia\n")
    put(
        tmp_path / "proc/driver/nvidia", "version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\nGCC version: 12.3.0\n",
    )  # fmt: skip
    return RealNode(tmp_path, tmp_path)


def test_facts_of_both(node: SpecFacts) -> None:
    assert node.kind("/usr/lib/lib.so") == "file"
    assert node.kind("/usr/lib") == "folder"
    assert node.kind("/usr/none") == ""
    assert node.numbers("/usr/lib/lib.so") is None
    assert [node.executable(path) for path in ("/usr/bin/hook", "/usr/lib/lib.so", "/none")] == [True, False, False]
    assert node.majors() == {"nvidia": 195}
    assert node.driver_version() == "570.133.20"


def test_links_of_the_host_are_followed_inside_its_root(tmp_path) -> None:
    put(tmp_path / "usr", "real.so", "")
    os.symlink("/usr/real.so", tmp_path / "usr/link.so")
    os.symlink("/etc/passwd", tmp_path / "usr/out")
    node = RealNode(tmp_path, tmp_path)
    assert node.kind("/usr/link.so") == "file"
    assert node.kind("/usr/out") == ""


def test_numbers_of_a_device() -> None:
    null = os.stat("/dev/null")
    assert RealNode().numbers("/dev/null") == Numbers(os.major(null.st_rdev), os.minor(null.st_rdev))
    assert stat.S_ISCHR(null.st_mode)
    assert RealNode().kind("/dev/null") == "char"


def test_a_spec_that_was_written_is_read_as_it_was(tmp_path) -> None:
    spec = parse_spec(text("0", "1"))
    for form in ("yaml", "json"):
        assert read_spec(put(tmp_path, f"x.{form}", dump_spec(spec, form))).spec == spec
