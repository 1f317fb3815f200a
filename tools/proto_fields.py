"""Write ``src/kgpu/lab/embedded/protobuf/data/fields.json``: how the API's protobuf messages map to its JSON.

Clients written in Go send built-in kinds in protobuf. Numbers and types are read from the ``generated.proto`` files,
JSON names, embedded structs and ``omitempty`` from the Go types beside them, all in the Go module cache:
``python tools/proto_fields.py VERSION`` (0.35.4). Only what the served kinds can hold is written.

A message is a row of fields ``number: [JSON name, type, Go name]``; no JSON name: the field's content stands in its
parent. Types: ``*`` before a list's, ``%`` before a map's, then a message's name or a letter (s string, b bool,
i int32, l int64, d double, y bytes, r bytes that are JSON text), and ``?`` where Go leaves out a zero. The Go name is
left out when it is the JSON name with a capital.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "src" / "kgpu" / "lab" / "embedded"
TARGET = ROOT / "protobuf" / "data" / "fields.json"
PACKAGE = re.compile(r"^package ([\w.]+);", re.MULTILINE)
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s+(optional |repeated )?(map<string, ?[\w.]+>|[\w.]+) (\w+) = (\d+);", re.MULTILINE)
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
GO_FIELD = re.compile(r"^\s*(?:(\w+)\s+)?([\w.*\[\]]+)\s+`([^`]*)`", re.MULTILINE)
JSON_TAG = re.compile(r'json:"([^"]*)"')
PROTO_TAG = re.compile(r'protobuf:"\w+,(\d+),')
SCALARS = {"string": "s", "bool": "b", "bytes": "y", "double": "d", "int32": "i", "int64": "l"}
MACHINERY = "io.k8s.apimachinery.pkg."
EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
TEXTS = {f"{MACHINERY}runtime.RawExtension", f"{MACHINERY}apis.meta.v1.FieldsV1", f"{EXTENSIONS}JSON"}
ALWAYS = {f"{MACHINERY}runtime.TypeMeta", f"{MACHINERY}apis.meta.v1.DeleteOptions"}
FOLDERS = (
    "api@v{}/*/v*",
    "apimachinery@v{}/pkg/runtime",
    "apimachinery@v{}/pkg/api/resource",
    "apimachinery@v{}/pkg/util/intstr",
    "apimachinery@v{}/pkg/apis/meta/v1",
    "apiextensions-apiserver@v{}/pkg/apis/apiextensions/v1",
    "kube-aggregator@v{}/pkg/apis/apiregistration/v1",
)
Tags = dict[str, tuple[str | None, list[str], str, bool]]


def message_name(text: str) -> str:
    """As the OpenAPI schemas have it."""
    return text.removeprefix(".").replace("k8s.io.", "io.k8s.", 1).replace("_", "-")


def go_tags(folder: Path) -> dict[str, Tags]:
    """Struct -> field number -> (JSON name, options, Go name, is a pointer)."""
    found: dict[str, Tags] = {}
    for path in folder.glob("*.go"):
        if path.name.startswith(("generated", "zz_")) or path.name.endswith("_test.go"):
            continue
        for name, body in STRUCT.findall(path.read_text()):
            rows = found.setdefault(name, {})
            for field, kind, tags in GO_FIELD.findall(body):
                number, tag = PROTO_TAG.search(tags), JSON_TAG.search(tags)
                if number is None:
                    continue
                key, *options = tag[1].split(",") if tag else [""]
                go_name = field or kind.rpartition(".")[2]
                rows[number[1]] = (key if tag else None, options, go_name, kind.startswith("*"))
    return found


def kind_of(text: str, package: str, message: str) -> str:
    if text in SCALARS:
        return "r" if text == "bytes" and message in TEXTS else SCALARS[text]
    if "." not in text and text[0].islower():
        raise SystemExit(f"a scalar that is not known: {text}")
    return message_name(text if "." in text else f"{package}.{text}")


def rows_of(package: str, name: str, body: str, tags: Tags | None) -> dict[str, list[str]]:
    message = message_name(f"{package}.{name}")
    rows = {}
    for label, type_, field, number in FIELD.findall(body):
        many = "*" if label == "repeated " else "%" if type_.startswith("map<") else ""
        kind = kind_of(type_[4:-1].split(",")[1].strip() if many == "%" else type_, package, message)
        # A message without a struct is a named list.
        key, options, go, pointer = (tags or {}).get(number) or (None if tags is not None else "", [], "", False)
        if key is None or (not key and "inline" not in options and tags is not None):
            key = field
        droppable = len(kind) == 1 and not many and not pointer and "omitempty" in options
        row = [key, many + kind + ("?" if droppable else "")]
        if go and go != key[:1].upper() + key[1:]:
            row.append(go)
        rows[number] = row
    return rows


def roots() -> set[str]:
    schemas = json.loads((ROOT / "data" / "schemas.json").read_text())
    served = set()
    for row in json.loads((ROOT / "data" / "resources.json").read_text())["resources"]:
        group, _, version = row["groupVersion"].rpartition("/")
        if row.get("version"):
            group, version = row.get("group", ""), row["version"]
        served.add((group, version, row["kind"]))
    return ALWAYS | {
        name
        for name, schema in schemas.items()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
        if (gvk["group"], gvk["version"], gvk["kind"]) in served
    }


def main() -> None:
    cache = Path(subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip())
    everything: dict[str, dict[str, list[str]]] = {}
    for pattern in FOLDERS:
        for path in sorted((cache / "k8s.io").glob(f"{pattern.format(sys.argv[1])}/generated.proto")):
            text, tags = path.read_text(), go_tags(path.parent)
            declared = PACKAGE.search(text)
            if declared is None:
                raise ValueError(f"{path} has no package line")
            package = declared[1]
            for name, body in MESSAGE.findall(text):
                everything[message_name(f"{package}.{name}")] = rows_of(package, name, body, tags.get(name))
    kept: dict[str, Any] = {}
    waiting = {name for name in roots() if name in everything}
    while waiting:
        name = waiting.pop()
        kept[name] = everything[name]
        used = {row[1].strip("*%?") for row in kept[name].values()}
        waiting |= {one for one in used if len(one) > 1 and one not in kept}
    lines = (f"{json.dumps(name)}:{json.dumps(kept[name], separators=(',', ':'))}" for name in sorted(kept))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(kept)} messages, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
