"""Write ``src/kgpu/lab/embedded/types/data/fields.json``: how the API's Go types print each field that is not set.

OpenAPI does not say it, and it decides what a stored object looks like: a string with ``omitempty`` disappears when it
is empty, a struct is always there, a pointer keeps its zero. Facts are read from the types of k8s.io/api and
apimachinery in the Go module cache: ``python tools/go_fields.py VERSION`` (0.35.4).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "src" / "kgpu" / "lab" / "embedded"
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
ALIAS = re.compile(r"^type (\w+) (=\s*)?([\[\]\w.*]+)\s*(?://.*)?$", re.MULTILINE)
IMPORT = re.compile(r'^\s*(\w+)?\s*"(k8s\.io/api[^"]*)"', re.MULTILINE)
FIELD = re.compile(r'^\s*(?:(\w+)\s+)?([\w.*\[\]]+)\s+`(?:[^`]*\s)?json:"([^"]*)"[^`]*`')
ZEROS: dict[str, Any] = {"string": "", "bool": False, "float64": 0, "byte": 0}
ZEROS |= {f"{sign}int{bits}": 0 for sign in ("", "u") for bits in ("", "8", "16", "32", "64")}
FOREIGN = {
    "metav1.Time": "time", "metav1.MicroTime": "time", "metav1.Duration": "string", "resource.Quantity": "quantity",
    "intstr.IntOrString": "int", "types.UID": "string", "types.NodeName": "string", "types.NamespacedName": "struct",
    "runtime.RawExtension": "null", "Time": "time", "MicroTime": "time", "Duration": "string", "FieldsV1": "null",
    "types.PatchType": "string",
}  # fmt: skip


def packages(cache: Path, version: str) -> dict[str, str]:
    """Schema prefix -> the package's Go text."""
    api = cache / f"k8s.io/api@v{version}"
    machinery = cache / f"k8s.io/apimachinery@v{version}"
    found = {
        f"io.k8s.api.{folder.parent.name}.{folder.name}": "\n".join(p.read_text() for p in folder.glob("*types*.go"))
        for folder in api.glob("*/v*")
        if folder.is_dir()
    }
    meta = machinery / "pkg/apis/meta/v1"
    found["io.k8s.apimachinery.pkg.apis.meta.v1"] = "\n".join(
        p.read_text() for p in meta.glob("*.go") if not p.name.endswith("_test.go")
    )
    return found


class Package:
    def __init__(self, text: str) -> None:
        self.structs = dict(STRUCT.findall(text))
        self.aliases = {name: target for name, _, target in ALIAS.findall(text)}
        self.imports = {alias or path.rpartition("/")[2]: path for alias, path in IMPORT.findall(text)}

    def shape(self, name: str, everything: dict[str, Package], depth: int = 0) -> str:
        """pointer, slice, map, struct, time, quantity, null, or a basic type's name."""
        if name.startswith("*"):
            return "pointer"
        if name.startswith("[]"):
            return "slice"
        if name.startswith("map["):
            return "map"
        if name in FOREIGN:
            return FOREIGN[name]
        if name in ZEROS or name in self.structs:
            return name if name in ZEROS else "struct"
        if name in self.aliases and depth < 5:
            return self.shape(self.aliases[name], everything, depth + 1)
        if "." in name:
            alias, _, bare = name.partition(".")
            package = self.imports.get(alias, "").replace("k8s.io", "io.k8s").replace("/", ".")
            if package in everything:
                return everything[package].shape(bare, everything, depth + 1)
        raise SystemExit(f"unknown Go type {name}")

    def row(self, name: str, everything: dict[str, Package]) -> dict[str, Any]:
        row: dict[str, Any] = {"drop": [], "zero": {}, "struct": []}
        for line in self.structs[name].splitlines():
            match = FIELD.match(line)
            if match is None:
                continue
            kind, (tag, *options) = match[2], match[3].split(",")
            if not tag:
                bare = kind.removeprefix("*")
                if bare in self.structs and bare not in ("TypeMeta", "ListMeta"):
                    inner = self.row(bare, everything)
                    row["drop"] += inner["drop"]
                    row["struct"] += inner["struct"]
                    row["zero"] |= inner["zero"]
                continue
            if tag == "-":
                continue
            shape = self.shape(kind, everything)
            if shape == "pointer" and "omitempty" in options:
                continue
            if "omitzero" in options:
                row["drop"].append(tag)
            elif shape == "struct":
                row["struct"].append(tag)
            elif shape in ("time", "null") or (shape in ("slice", "map", "pointer") and "omitempty" not in options):
                row["zero"][tag] = None
            elif shape == "quantity":
                row["zero"][tag] = "0"
            elif "omitempty" in options and kind != "intstr.IntOrString":
                row["drop"].append(tag)
            else:
                row["zero"][tag] = ZEROS[shape]
        return row


def main() -> None:
    cache = Path(subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip())
    everything = {prefix: Package(text) for prefix, text in packages(cache, sys.argv[1]).items()}
    table = {}
    for name in json.loads((ROOT / "data" / "schemas.json").read_text()):
        prefix, _, bare = name.rpartition(".")
        package = everything.get(prefix)
        if package is None or bare not in package.structs or name in FOREIGN:
            continue
        row = {key: value for key, value in package.row(bare, everything).items() if value}
        if row:
            table[name] = row
    out = ROOT / "types" / "data" / "fields.json"
    out.write_text(json.dumps(table, sort_keys=True, separators=(",", ":")) + "\n")
    print(f"{len(table)} types, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
