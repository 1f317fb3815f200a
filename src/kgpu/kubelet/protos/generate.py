"""Regenerate ``kgpu/kubelet/pb`` from the ``.proto`` files here: ``python -m kgpu.kubelet.protos.generate``.

Needs grpcio-tools (development only). The check of the protobuf version that generated files carry is taken out: the
descriptor bytes are the same for every protobuf release that kgpu supports, while the check would tie the installed
protobuf to the newest generator. ``tests/kubelet/test_protos.py`` holds the files to be current.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PB = HERE.parent / "pb"
_VERSION_CHECK = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\((?:.|\n)*?\n\)\n"
    r"|^# Protobuf Python Version: .*\n",
    re.MULTILINE,
)


def generate(out: Path) -> list[Path]:
    """Write ``<name>_pb2.py`` and ``.pyi`` for every ``.proto`` here into ``out``; RuntimeError when protoc refuses."""
    protoc = importlib.import_module("grpc_tools.protoc")
    protos = sorted(str(path) for path in HERE.glob("*.proto"))
    status = protoc.main(["protoc", f"-I{HERE}", f"--python_out={out}", f"--pyi_out={out}", *protos])
    if status != 0:
        msg = f"protoc ended with {status}"
        raise RuntimeError(msg)
    written = sorted(out.glob("*_pb2.py*"))
    for path in written:
        path.write_text(_VERSION_CHECK.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")
    return written


def main() -> int:
    """Generate into the package."""
    PB.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for path in generate(Path(folder)):
            (PB / path.name).write_bytes(path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
