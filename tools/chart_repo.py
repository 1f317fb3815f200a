"""Makes a chart repository: the chart as a package, and the index by which ``helm repo add`` finds it.

``python tools/chart_repo.py [DIR] [URL]``: into DIR (default ``dist/charts``), for packages that will be served under
URL (default: beside the index). Any web server that serves the folder's files is a repository. Helm is the lab's, built
once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kgpu.base.errors import LabError
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build

CHART = Path(__file__).parent.parent / "charts" / "kgpu"


def make(helm: str, folder: Path, url: str = "") -> Path:
    """Package the chart into the folder and write its index; returns the index. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([helm, "package", str(CHART), "--destination", str(folder)], check=True)
    subprocess.run([helm, "repo", "index", str(folder), *(["--url", url] if url else [])], check=True)
    return folder / "index.yaml"


def main() -> int:
    """Make it and say where it is."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist/charts")
    try:
        index = make(build.ensure_helm(PlainProgress()), folder, sys.argv[2] if len(sys.argv) > 2 else "")
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    sys.stdout.write(f"{index}: serve this folder, then `helm repo add kgpu URL`\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
