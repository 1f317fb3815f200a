"""Whole runs of ``.ci/run`` on one commit, each in a fresh clone: what is green before a commit is called proven.

``python tools/prove_ci.py FOLDER`` runs what the folder does not yet have of ``RUNS``, so that it can be interrupted
and started again; ``--only NAME`` runs one of them. Each run's log and its seconds stay in the folder, and a run of
another commit counts for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# CI ends a run after this long.
LIMIT_S: Final = 90 * 60


@dataclass(frozen=True, slots=True)
class Run:
    """``cold``: with a home of its own, so that nothing is cached; ``copies``: so many runs beside each other."""

    name: str
    cold: bool = False
    copies: int = 1


RUNS: Final = (Run("cold", cold=True), Run("warm-1"), Run("warm-2"), Run("warm-3"), Run("beside-a-second", copies=2))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--only", choices=[run.name for run in RUNS])
    given = arguments.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    commit = git("rev-parse", "HEAD")
    given.folder.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if given.only in {None, run.name} and not result(given.folder, run, commit).get("green"):
            play(given.folder, run, commit)
    green = True
    for run in RUNS:
        found = result(given.folder, run, commit)
        said = f"{found['seconds']:.0f} s, {found['closing']}" if found else "not run"
        print(f"{run.name:16} {'green' if found.get('green') else 'NOT GREEN'}  {said}")
        green = green and bool(found.get("green"))
    return 0 if green else 1


def play(folder: Path, run: Run, commit: str) -> None:
    """Run it, and write down how it went. What an interrupt leaves behind is cleaned up by the run itself."""
    begun = time.monotonic()
    places = [folder / f"{run.name}-{number}" for number in range(run.copies)]
    processes = [start(place, commit, cold=run.cold) for place in places]
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    except BaseException:
        running = [process for process in processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGINT)
        for process in running:
            process.wait()
        raise
    seconds = time.monotonic() - begun
    closing = "; ".join((place / "log").read_text(errors="replace").strip().rpartition("\n")[2] for place in places)
    found = {"commit": commit, "green": not any(codes), "seconds": seconds, "closing": closing}
    (folder / f"{run.name}.json").write_text(json.dumps(found))
    for place in places:
        shutil.copyfile(place / "log", folder / f"{place.name}.log")
        shutil.rmtree(place)


def start(place: Path, commit: str, *, cold: bool) -> subprocess.Popen[bytes]:
    """A fresh clone of the commit, and ``.ci/run`` in it as CI calls it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place / "main")], check=True)
    subprocess.run(["git", "-C", str(place / "main"), "checkout", "--quiet", commit], check=True)
    shared = ROOT.parent / "shared"
    if shared.exists():
        (place / "shared").symlink_to(shared)
    env = {**os.environ, "CI": "true"}
    if cold:
        env |= {name: str(place / "home" / folder) for name, folder in HOMES.items()}
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            ["bash", ".ci/run"], cwd=place / "main", env=env, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


# Where programs keep what they have fetched and built, below the home.
HOMES: Final = {"HOME": "", "XDG_CACHE_HOME": ".cache", "XDG_STATE_HOME": ".state", "GOPATH": "go",
                "GOCACHE": ".cache/go-build"}  # fmt: skip


def result(folder: Path, run: Run, commit: str) -> dict[str, Any]:
    """What the run of this commit gave; empty when there was none."""
    try:
        found: dict[str, Any] = json.loads((folder / f"{run.name}.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if found.get("commit") == commit else {}


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
