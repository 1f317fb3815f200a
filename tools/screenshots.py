"""``python -m tools.screenshots``: the pictures in ``docs/images``, of a lab of their own in which a GPU is broken.

The page is shown by Chromium (``tests/overview/chromium.py`` finds it), what terminals show by rich's own SVG.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from tests.child import child
from tests.overview.chromium import Chromium, chromium
from tests.polling import holds

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
KGPU: Final = (sys.executable, "-m", "kgpu")
LAB: Final = f"screenshots-{os.getpid()}"
LARGEST: Final = 150_000  # bytes
SECONDS: Final = 180.0
SHOTS: Final = (("top", ("top", "--once")), ("doctor", ("doctor", "node", "gpu-node-1")))
NAMESPACE: Final = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
PODS: Final = {"train-0": (2, "train"), "train-1": (1, "train"), "serve-0": (1, "inference"), "notebook-0": (1, "held")}
"""How many GPUs each holds, and what it does on them; ``wide-0`` asks for more than the node has."""


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    kgpu("lab", "up", "--operator", "--name", LAB, "--profile", "hgx-h100")
    try:
        path = kgpu("lab", "kubeconfig", "--name", LAB).strip()
        work(path)
        with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as window:
            page(window, path)
        for name, words in SHOTS:
            save(f"{name}.svg", drawn(" ".join(("kgpu", *words)), shown(path, *words)))
    finally:
        kgpu("lab", "down", "--name", LAB)
    return 0


def kgpu(*words: str) -> str:
    return subprocess.run([*KGPU, *words], capture_output=True, text=True, check=True).stdout


def work(path: str) -> None:
    """Pods that hold GPUs and compute, one that waits, and a GPU that is lost."""
    wanted = [NAMESPACE, *(pod(name, count) for name, (count, _) in PODS.items()), pod("wide-0", 9)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as manifest:
        json.dump({"apiVersion": "v1", "kind": "List", "items": wanted}, manifest)
        manifest.flush()
        kgpu("lab", "kubectl", "--name", LAB, "apply", "-f", manifest.name)
    until(lambda: {pod for gpu in gpus(path) for pod in holders(gpu)} == set(PODS))
    for gpu in gpus(path):
        for name in holders(gpu):
            kgpu("lab", "hw", "load", PODS[name][1], "--gpu", str(gpu["index"]), "--name", LAB)
    free = [gpu for gpu in gpus(path) if not holders(gpu)]
    kgpu("lab", "hw", "inject", "xid", "79", "--gpu", str(free[-1]["index"]), "--name", LAB)
    until(lambda: "LOST" in shown(path, "top", "--once"))


def pod(name: str, count: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": count}
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"], "resources": {"limits": limits}}
    about = {"name": name, "namespace": "ml"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [container]}}


def gpus(path: str) -> list[dict[str, Any]]:
    return [gpu for node in json.loads(shown(path, "top", "-o", "json"))["nodes"] for gpu in node["gpus"]]


def holders(gpu: dict[str, Any]) -> list[str]:
    return [user["pod"] for user in gpu.get("pods", ())]


def until(condition: Callable[[], bool]) -> None:
    if not holds(condition, seconds=SECONDS, pause=2):
        raise SystemExit("the lab does not come to look as wanted: see `kgpu top` in it")


def shown(path: str, *words: str) -> str:
    """What a command writes to a terminal, with its colours; a doctor's exit code says that it has found something."""
    env = {**os.environ, "KUBECONFIG": path, "FORCE_COLOR": "1", "COLUMNS": "118", "TERM": "xterm-256color"}
    done = subprocess.run([*KGPU, *words], capture_output=True, text=True, check=False, env=env)
    if done.returncode > 1:
        raise SystemExit(f"{words}: {done.stderr}")
    return done.stdout


def drawn(title: str, text: str) -> str:
    """A terminal's window as SVG."""
    console = Console(record=True, width=118, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title=title, unique_id=title.split()[1])
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # rich takes them from another server


def page(window: Chromium, path: str) -> None:
    words = [*KGPU, "overview", "--kubeconfig", path]
    with child(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        window.look(width=1200, height=1390)
        window.tools("Emulation.setScrollbarsHidden", hidden=True)
        window.open(process.stdout.readline().strip())
        there = "Boolean(document.querySelector('.card.lost') && document.querySelector('#attention .copy'))"
        until(lambda: bool(window.evaluate(there)))
        time.sleep(20)  # so that the small curves have something to show
        save("overview.webp", base64.b64decode(window.picture("webp")))


def save(name: str, content: str | bytes) -> None:
    made = content.encode() if isinstance(content, str) else content
    if len(made) > LARGEST:
        raise SystemExit(f"{name} has {len(made)} bytes; at most {LARGEST} belong into the repository")
    (IMAGES / name).write_bytes(made)
    print(f"{IMAGES / name}: {len(made)} bytes")


if __name__ == "__main__":
    sys.exit(main())
