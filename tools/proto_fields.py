"""Write ``src/kgpu/lab/embedded/data/protobuf.json``: the fields of the API's protobuf messages by number.

Clients written in Go send built-in kinds in protobuf. Facts are read from the ``generated.proto`` files of k8s.io/api
and apimachinery in the Go module cache: ``python tools/proto_fields.py VERSION`` (0.35.4).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src" / "kgpu" / "lab" / "embedded" / "data" / "protobuf.json"
PACKAGE = re.compile(r"^package ([\w.]+);", re.MULTILINE)
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s+(optional |repeated )?(map<string, ?[\w.]+>|[\w.]+) (\w+) = (\d+);", re.MULTILINE)
SCALARS = {"string": "s", "bool": "b", "bytes": "y", "double": "d", "int32": "i", "int64": "i"}


def kind_of(text: str, package: str) -> str:
    """A scalar's letter, or the message's name as the OpenAPI schemas have it."""
    if text in SCALARS:
        return SCALARS[text]
    name = text.removeprefix(".") if "." in text else f"{package}.{text}"
    return name.replace("k8s.io.", "io.k8s.", 1)


def main() -> None:
    cache = Path(subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip())
    version = sys.argv[1]
    files = [
        path
        for path in (cache / f"k8s.io/api@v{version}").glob("*/v*/generated.proto")
        if re.fullmatch(r"v\d+", path.parent.name)
    ]
    files.append(cache / f"k8s.io/apimachinery@v{version}/pkg/apis/meta/v1/generated.proto")
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(files):
        text = path.read_text()
        package = PACKAGE.search(text)[1]
        for name, body in MESSAGE.findall(text):
            fields = {}
            for label, type_, field, number in FIELD.findall(body):
                prefix = "*" if label == "repeated " else ""
                if type_.startswith("map<"):
                    prefix, type_ = "%", type_[4:-1].split(",")[1].strip()  # noqa: PLW2901
                fields[number] = [field, prefix + kind_of(type_, package)]
            found[kind_of(name, package)] = fields
    TARGET.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n")
    print(f"{TARGET}: {len(found)} messages")


if __name__ == "__main__":
    main()
