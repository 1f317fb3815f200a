"""Sets of completion indexes as an Indexed Job's status writes them (``0,2-5``), and the index of a pod. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kgpu.formats.names import JOB_INDEX_LABEL
from kgpu.kube.port import Object, annotations_of


def index_of(pod: Object) -> int | None:
    """The pod's completion index; None when it has none that can be read."""
    text = annotations_of(pod).get(JOB_INDEX_LABEL, "")
    return int(text) if text.isdecimal() else None


def parse(text: str, completions: int) -> set[int]:
    """The indexes below ``completions``; parts that can't be read are left out."""
    indexes: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            indexes.update(range(int(first), min(int(last) if dash else int(first), completions - 1) + 1))
    return indexes


def written(indexes: Iterable[int]) -> str:
    """Ranges of three and more with a dash, otherwise commas."""
    parts: list[str] = []
    run: list[int] = []

    def close() -> None:
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts.extend(str(index) for index in run)
        run.clear()

    for index in sorted(set(indexes)):
        if run and index != run[-1] + 1:
            close()
        run.append(index)
    close()
    return ",".join(parts)


def first_missing(taken: Collection[int], count: int, completions: int) -> list[int]:
    """The lowest ``count`` indexes that are not taken."""
    missing: list[int] = []
    for index in range(completions):
        if len(missing) >= count:
            break
        if index not in taken:
            missing.append(index)
    return missing
