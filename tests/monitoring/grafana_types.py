"""Grafana's published types of dashboards, and TypeScript's compiler to ask whether a dashboard is of them.

Both come from the npm registry at one version, once; without Node.js and npm tests are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.npm import npm

PACKAGES: Final = ("@grafana/schema@12.4.11", "typescript@5.9.3")
CACHE: Final = Path.home() / ".cache" / "kgpu" / "tests" / "grafana-12.4.11"
OPTIONS: Final = {
    "timeseries": "TimeSeriesPanelCfg", "stat": "StatPanelCfg", "gauge": "GaugePanelCfg",
    "bargauge": "BarGaugePanelCfg", "table": "TablePanelCfg",
}  # fmt: skip
"""The type of each panel's options, which the panel's own type leaves open."""
# An enumeration's values are words in JSON. Some: every field may be left out, for Grafana fills it in.
_HELPERS: Final = """
type Json<T> = T extends string ? `${T}` : T extends Array<infer E> ? Array<Json<E>>
  : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Some<T> = T extends string ? `${T}` : T extends Array<infer E> ? Array<Some<E>>
  : T extends object ? { [K in keyof T]?: Some<T[K]> } : T;
"""


def installed() -> Path:
    """The folder with the packages."""
    if (CACHE / "node_modules").is_dir():
        return CACHE
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        partial = Path(folder) / "packages"
        partial.mkdir()
        (partial / "package.json").write_text("{}")
        npm(partial, "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES)
        with contextlib.suppress(OSError):  # another run was faster
            partial.rename(CACHE)
    return CACHE


def complaints(packages: Path, folder: Path, boards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the compiler says of dashboards by name, line by line; none where all are of Grafana's types."""
    (folder / "node_modules").symlink_to(packages / "node_modules")
    for name, board in boards.items():
        (folder / f"{name}.ts").write_text("\n".join(_program(board)))
    tsc = packages / "node_modules" / "typescript" / "bin" / "tsc"
    words = ["node", str(tsc), "--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext"]
    done = subprocess.run(
        [*words, "--moduleResolution", "nodenext", *(f"{name}.ts" for name in boards)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    return (done.stdout + done.stderr).splitlines()


def _program(board: Mapping[str, Any]) -> Iterator[str]:
    yield "import type { Dashboard, Panel } from '@grafana/schema';"
    for kind, name in OPTIONS.items():
        where = f"@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/{name}_types.gen"
        yield f"import type {{ Options as {name} }} from '{where}';"
    yield _HELPERS
    yield f"export const board: Json<Dashboard> = {json.dumps(board)};"
    for number, panel in enumerate(board["panels"]):
        yield f"export const panel{number}: Json<Panel> = {json.dumps(panel)};"
        if "options" in panel:
            yield f"export const options{number} = {json.dumps(panel['options'])} satisfies Some<{OPTIONS[panel['type']]}>;"
