"""kgpu's own image: what is in it, that the same files give the same bytes, and that it runs."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import kgpu
from kgpu.formats.programs import ENTRYPOINT, LINKS
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import bytecode, kgpu_image, python_files

PROGRAM = f"{python_files.HOME}/bin/kgpu"


@pytest.fixture(scope="module")
def archive() -> Path:
    return kgpu_image.ensure_image(QuietProgress())


class Opened:
    """An OCI archive, read."""

    def __init__(self, archive: Path) -> None:
        self._tar = tarfile.open(fileobj=io.BytesIO(archive.read_bytes()))  # noqa: SIM115 - it is memory
        self.index = json.loads(self._read("index.json"))
        self.manifest = self._blob(self.index["manifests"][0]["digest"])
        self.config = self._blob(self.manifest["config"]["digest"])["config"]
        self.layers = [self._layer(layer["digest"]) for layer in self.manifest["layers"]]
        self.entries = {entry.name: entry for layer in self.layers for entry in layer.getmembers()}

    def _read(self, path: str) -> bytes:
        found = self._tar.extractfile(path)
        assert found is not None
        return found.read()

    def _blob(self, digest: str) -> Any:
        return json.loads(self._read(f"blobs/sha256/{digest.removeprefix('sha256:')}"))

    def _layer(self, digest: str) -> tarfile.TarFile:
        raw = gzip.decompress(self._read(f"blobs/sha256/{digest.removeprefix('sha256:')}"))
        return tarfile.open(fileobj=io.BytesIO(raw))

    def data(self, path: str) -> bytes:
        for layer in self.layers:
            if path in layer.getnames():
                found = layer.extractfile(path)
                assert found is not None
                return found.read()
        raise KeyError(path)


@pytest.fixture(scope="module")
def image(archive: Path) -> Opened:
    return Opened(archive)


def test_the_same_files_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kgpu"
    package.mkdir()
    (package / "one.py").write_text("NAMES = {'a', 'b', 'c'}\n\n\ndef f(x): return x in {'d', 'e', 'f'}\n")
    (package / "data.yaml").write_text("a: b\n")
    files = [
        python_files.CopiedFile(f"{python_files.SITE}/kgpu/{one.name}", str(one)) for one in sorted(package.iterdir())
    ]
    monkeypatch.setattr(python_files, "own_package", lambda: files)
    kgpu_image.ensure_base(QuietProgress(), kgpu_image.cache_folder())
    first = tmp_path / "first"
    first.mkdir()
    for layer in kgpu_image.cache_folder().glob("base-*.tar.gz"):  # others may be at work on the rest of the cache
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(layer, first)
    known = kgpu_image.ensure_image(QuietProgress(), cache=first)
    again = kgpu_image.ensure_image(QuietProgress(), cache=tmp_path / "cache")
    assert again.name == known.name
    assert again.read_bytes() == known.read_bytes()
    (package / "data.yaml").write_text("a: c\n")
    assert kgpu_image.ensure_image(QuietProgress(), cache=first).name != known.name


def test_what_somebody_may_be_about_to_read_stays_in_the_cache(tmp_path: Path) -> None:
    now = time.time()
    for number in range(8):
        path = tmp_path / f"kgpu-{number}.tar"
        path.touch()
        os.utime(path, (now, now - number * 1000.0))
    (tmp_path / "base-1.tar.gz").touch()
    kgpu_image._forget_old(tmp_path, "kgpu-*.tar")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["base-1.tar.gz", *(f"kgpu-{number}.tar" for number in range(4))]
    for path in tmp_path.iterdir():
        os.utime(path)
    for number in range(4, 8):
        (tmp_path / f"kgpu-{number}.tar").touch()
    kgpu_image._forget_old(tmp_path, "kgpu-*.tar")
    assert len(list(tmp_path.glob("kgpu-*"))) == 8
    assert kgpu_image._kept(tmp_path / "kgpu-0.tar")
    assert not kgpu_image._kept(tmp_path / "kgpu-9.tar")


def test_what_it_is_called_and_runs(image: Opened) -> None:
    names = [entry["annotations"]["io.containerd.image.name"] for entry in image.index["manifests"]]
    assert names == list(kgpu_image.NAMES) == ["kgpu.dev/kgpu:dev", f"kgpu.dev/kgpu:{kgpu.__version__}"]
    assert image.config["Entrypoint"] == [f"/{python_files.HOME}/bin/{ENTRYPOINT}"]


def test_every_name_of_the_program_is_there_and_where_the_replaced_images_have_it(image: Opened) -> None:
    for name in LINKS:
        assert image.entries[f"{python_files.HOME}/bin/{name}"].linkname == "kgpu"
        assert image.entries[f"usr/bin/{name}"].linkname == f"/{PROGRAM}"


def test_the_other_way_to_make_it_has_the_same_entry_point_and_names() -> None:
    lines = (Path(__file__).parents[2] / "Dockerfile").read_text().splitlines()
    assert f'ENTRYPOINT ["/{python_files.HOME}/bin/{ENTRYPOINT}"]' in lines
    told = [line for line in lines if "from kgpu.formats.programs import LINKS; print(*LINKS)" in line]
    assert len(told) == 2, "beside the program, and in /usr/bin"


def test_kgpu_and_what_it_needs_are_there_and_no_more(image: Opened) -> None:
    tops = {
        PurePosixPath(path).relative_to(python_files.SITE).parts[0]
        for path in image.entries
        if path.startswith(f"{python_files.SITE}/")
    }
    assert {"kgpu", "click", "msgspec", "lightkube", "grpclib", "google", "yaml", "pynvml.py"} <= tops
    assert not {"pytest", "hypothesis", "mypy", "uvicorn", "cel_expr_python", "pip", "ruff"} & tops
    assert not any(path.endswith("/RECORD") or "/test/" in path for path in image.entries)


def test_every_module_is_compiled(image: Opened) -> None:
    tag = sys.implementation.cache_tag
    sources = [path for path in image.entries if path.startswith(f"{python_files.SITE}/kgpu/") and path[-3:] == ".py"]
    assert len(sources) > 100
    for path in sources:
        where, name = os.path.split(path)
        assert f"{where}/__pycache__/{name[:-3]}.{tag}.pyc" in image.entries


def test_compiled_modules_name_the_images_paths(image: Opened) -> None:
    tag = sys.implementation.cache_tag
    found = image.data(f"{python_files.SITE}/kgpu/__pycache__/__main__.{tag}.pyc")
    assert f"/{python_files.SITE}/kgpu/__main__.py".encode() in found
    assert os.fsencode(Path(kgpu.__file__).parent) not in found


def test_links_lead_somewhere(image: Opened) -> None:
    links = {path: entry.linkname for path, entry in image.entries.items() if entry.issym()}
    assert f"{python_files.HOME}/bin/{LINKS[0]}" in links
    for path, link in links.items():
        target = os.path.normpath(os.path.join("/", os.path.dirname(path), link)).strip("/")
        assert target in image.entries, path


def test_a_compiled_module_is_what_python_makes() -> None:
    assert bytecode.compiled(b"x = 1\n", "/a.py")[4:8] == b"\x01\0\0\0"
    with pytest.raises(SyntaxError):
        bytecode.compiled(b"x = = 1\n", "/a.py")


def test_what_is_needed_by_what_is_needed_counts_too() -> None:
    found = set(python_files.dependencies())
    assert {"click", "lightkube", "h2", "hpack"} <= found
    assert not {"kgpu", "pytest", "uvicorn", "cel-expr-python"} & found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root folder")
def test_it_runs(image: Opened, tmp_path: Path) -> None:
    for layer in image.layers:
        layer.extractall(tmp_path, filter="fully_trusted")
    code = "import ssl, ctypes, anyio, httpx2, lightkube, kgpu.agent.run, kgpu.kube.client, sys; print(sys.prefix)"
    for command, printed in (
        ([f"/{PROGRAM}", "version"], f"kgpu {kgpu.__version__}"),
        ([f"/{python_files.HOME}/bin/{ENTRYPOINT}", "version"], f"kgpu {kgpu.__version__}"),
        (["/usr/bin/gpu-feature-discovery", "--version"], f"kgpu {kgpu.__version__}"),
        ([f"/{python_files.HOME}/bin/python3", "-c", code], f"/{python_files.HOME}"),
    ):
        done = subprocess.run(
            ["/usr/sbin/chroot", str(tmp_path), *command], capture_output=True, text=True, env={}, timeout=60
        )
        assert done.stdout.strip() == printed, done.stderr
