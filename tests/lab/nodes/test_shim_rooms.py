"""A container's root made by somebody who is not root: what the machine keeps from them, they get as links."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kgpu.lab.nodes import shim

NOBODY = 65534
PROGRAM = """
import encodings.ascii, json, os, sys
sys.path.insert(0, sys.argv[1])
import shim  # while the interpreter's own files can be read
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
shim._libc.prctl(4, 1)  # dumpable again, or /proc/self stays root's
source = os.path.join(sys.argv[2], "source")
open(source, "w").write("mine")
shim.unshare(user=True)
root = shim.build_root({{"folder": sys.argv[2]}}, user=True)
found = {{}}
for target in ("/usr/bin/kgpu-test", "/lib/kgpu/deep/er/file", "/opt/kgpu/file", "/kgpu-file"):
    shim.bind(source, target, root=root)
    found[target] = open(root + target).read()
os.chroot(root)
os.chdir("/")
found["sh"] = os.access("/usr/bin/sh", os.X_OK) and os.access("/bin/sh", os.X_OK)
found["os-release"] = os.path.exists("/etc/os-release")
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody; others are tested as they are")
def test_nobody_can_put_files_where_only_root_may_write() -> None:
    folder = tempfile.mkdtemp(prefix="kgpu-shim-")
    os.chown(folder, NOBODY, NOBODY)
    copy = Path(folder, "code")
    copy.mkdir()
    shutil.copy(shim.__file__, copy / "shim.py")
    copy.chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROGRAM.format(nobody=NOBODY), str(copy), folder],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "unshare: Operation not permitted" in done.stderr:
            pytest.skip("user namespaces are not allowed here")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)
    assert found.pop("sh") is True
    assert found.pop("os-release") is True
    assert len(found) == 4
    assert set(found.values()) == {"mine"}


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/var/run/secrets/token", "/run/secrets/token"),  # an absolute link, which leads out of the root by itself
        ("/lib/x.so", "/usr/lib/x.so"),
        ("/a/b", "/b"),
        ("/up/x", "/x"),
        ("/usr/lib", "/usr/lib"),
        ("/new/deep/file", "/new/deep/file"),
        ("/usr/../lib/x", "/usr/lib/x"),
    ],
)
def test_links_are_followed_within_the_root(path: str, real: str, tmp_path: Path) -> None:
    for folder in ("usr/lib", "var", "run"):
        (tmp_path / folder).mkdir(parents=True)
    for link, to in (("var/run", "/run"), ("lib", "usr/lib"), ("a", "."), ("up", "../../..")):
        (tmp_path / link).symlink_to(to)
    assert shim.inside(str(tmp_path), path) == real


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        shim.inside(str(tmp_path), "/a/x")


def test_a_folder_that_is_replaced_keeps_what_was_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / shim.HOST.strip("/")).mkdir()
    (root / "lib").symlink_to("usr/lib")
    mounted: list[str] = []
    monkeypatch.setattr(shim, "mount", lambda _source, target, *_rest: mounted.append(target))
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) == root)
    place = shim.make_room(str(root), "/lib/kgpu/libx.so.1")
    assert place == str(root / "usr/lib/kgpu/libx.so.1")
    assert mounted == [str(root / "usr")]
    assert os.readlink(root / "usr/bin") == f"{shim.HOST}/usr/bin"
    assert (root / "usr/lib").is_dir()
    assert not (root / "usr/lib").is_symlink()
    assert {entry.name for entry in (root / "usr/lib").iterdir()} >= set(os.listdir("/usr/lib"))
    assert (root / "usr/lib/kgpu").is_dir()
