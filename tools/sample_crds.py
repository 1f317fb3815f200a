"""Write ``tests/samples/crds``: the definitions of other programs' kinds that the manifests of ``docs/samples`` use.

They come from the programs' published Go modules, which ``go mod download`` fetches: ``python tools/sample_crds.py``.
Of each definition the version that is stored is kept, without descriptions and without the status, which no sample has.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

TARGET: Final = Path(__file__).parents[1] / "tests" / "samples" / "crds"
KUEUE: Final = "config/components/crd/bases/kueue.x-k8s.io_{}.yaml"
SOURCES: Final = (
    ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_{}.yaml", ("scaledobjects",)),
    ("sigs.k8s.io/karpenter@v1.14.0", "pkg/apis/crds/karpenter.sh_{}.yaml", ("nodepools", "nodeoverlays")),
    ("sigs.k8s.io/kueue@v0.17.0", KUEUE, ("resourceflavors", "clusterqueues", "localqueues")),
)


def folder_of(module: str) -> Path:
    """Where Go keeps the module."""
    done = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])


def without_descriptions(schema: Any) -> Any:
    """The schema without what people read of it; a property that is called description stays."""
    if isinstance(schema, list):
        return [without_descriptions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_descriptions(value)
        for key, value in schema.items()
        if not (key == "description" and isinstance(value, str))
    }


def shortened(definition: Any) -> Any:
    """The definition with its stored version alone."""
    spec = definition["spec"]
    (version,) = (one for one in spec["versions"] if one["storage"])
    schema = without_descriptions(version["schema"])
    schema["openAPIV3Schema"]["properties"].pop("status", None)
    kept = {key: version[key] for key in ("name", "served", "storage")}
    versions = [{**kept, "schema": schema, "subresources": {"status": {}}}]
    names = {"group": spec["group"], "names": spec["names"], "scope": spec["scope"]}
    metadata = {key: definition["metadata"][key] for key in ("name",)}
    return {
        "apiVersion": definition["apiVersion"], "kind": definition["kind"], "metadata": metadata,
        "spec": {**names, "versions": versions},
    }  # fmt: skip


def main() -> None:
    """Write a file for each definition."""
    for module, pattern, plurals in SOURCES:
        folder = folder_of(module)
        for plural in plurals:
            path = pattern.format(plural)
            definition = shortened(yaml.safe_load((folder / path).read_text()))
            head = f"# From {module}, {path}; Apache-2.0. Shortened by tools/sample_crds.py.\n"
            text = yaml.safe_dump(definition, sort_keys=False, width=180, default_flow_style=None)
            (TARGET / f"{definition['spec']['group']}_{plural}.yaml").write_text(head + text)


if __name__ == "__main__":
    main()
