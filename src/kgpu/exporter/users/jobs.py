"""Batch jobs by device: a job system keeps a folder with a file per GPU (``0``) or GPU instance (``0.7``) that has the
ids of its jobs, one a line. Names and format are the replaced exporter's.

An invalid file is skipped. The number and size of files are limited, as others may write into the folder, and links are
not followed: ids become labels that everybody may read. The folder itself may be a link, if root has made it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

from kgpu.base.errors import HostError
from kgpu.exporter.model import Unit
from kgpu.host.bounded import read_regular
from kgpu.hw.port import Inventory

_NAME: Final = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?", re.ASCII)
FILES: Final = 512
NAMES: Final = 8192
"""How many of the folder's names are looked at."""
FILE_BYTES: Final = 1 << 16
JOBS: Final = 64
"""Jobs on one device: each is a series of each of its metrics."""
JOB_LENGTH: Final = 256


class Jobs(NamedTuple):
    """Job ids by device, and the number of files that are left out, by reason."""

    by_unit: dict[Unit, tuple[str, ...]]
    missing: dict[tuple[str, str], int]


def read_jobs(folder: Path, inventory: Inventory) -> Jobs:
    """Read the folder; a file for a device that does not exist is counted. Raises HostError."""
    _require_own(folder)
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, NAMES + 1))
    except OSError as error:
        raise HostError(
            f"{folder} can't be read: {error.strerror}", "the folder of batch jobs by GPU",
            "make it, or correct --hpc-job-mapping-dir",
        ) from error  # fmt: skip
    uuids = {gpu.index: gpu.uuid for gpu in inventory.accelerators}
    instances = {(gpu.index, part.gpu_instance) for gpu in inventory.accelerators for part in gpu.partitions}
    by_unit: dict[Unit, tuple[str, ...]] = {}
    missing: dict[tuple[str, str], int] = {}

    def count(reason: str) -> None:
        missing["job-file", reason] = missing.get(("job-file", reason), 0) + 1

    if len(names) > NAMES:
        count("too-many")
    read = 0
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue  # something else of theirs: a lock, a temporary file
        index, instance = int(match[1]), int(match[2]) if match[2] else None
        if index not in uuids or (instance is not None and (index, instance) not in instances):
            count("unknown-device")
            continue
        read += 1
        if read > FILES:
            count("too-many")
            continue
        try:
            raw, _ = read_regular(folder / name, FILE_BYTES, what="a file of job ids, one a line", follow=False)
        except HostError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # a job that has just ended
                count("unreadable")
            continue
        jobs = job_ids(raw)
        if len(jobs) > JOBS:
            count("too-many-jobs")
        if jobs:
            by_unit[Unit(uuids[index], instance)] = jobs[:JOBS]
    return Jobs(by_unit, missing)


def _require_own(folder: Path) -> None:
    """Raise HostError if the folder is a link that somebody else has made: it would choose which files root reads."""
    with contextlib.suppress(OSError):  # the reading says what is wrong with the folder
        about = folder.lstat()
        if stat.S_ISLNK(about.st_mode) and about.st_uid not in {0, os.geteuid()}:
            raise HostError(
                f"{folder} is a link that user {about.st_uid} has made", "a folder, or a link that root has made",
                "see who can write the folder above it, and make the folder there, or correct --hpc-job-mapping-dir",
            )  # fmt: skip


def job_ids(raw: bytes) -> tuple[str, ...]:
    """The ids of one file, each once, in its order."""
    lines = (line.strip()[:JOB_LENGTH] for line in raw.decode("utf-8", "replace").splitlines())
    return tuple(dict.fromkeys(line for line in lines if line))
