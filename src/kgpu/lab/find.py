"""Which lab has a name: the one whose state file is in its folder, with the settings it was made with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgpu.base.errors import LabError
from kgpu.lab import common
from kgpu.lab.folders import kind_of
from kgpu.lab.port import EMBEDDED, REAL
from kgpu.lab.progress import PlainProgress, Progress

if TYPE_CHECKING:
    from kgpu.lab.port import Lab


def find(name: str, folder: Path | None = None, *, kind: str = "", progress: Progress | None = None) -> Lab:
    """The lab of that name; where there is none yet, one of ``kind`` (default: embedded) with default settings.

    Raises LabError when there is one of another kind than asked for.
    """
    progress = progress or PlainProgress()
    where = (folder or common.labs_root() / name).absolute()
    existing = kind_of(where)
    if existing and kind and existing != kind:
        raise LabError(
            f'the lab "{name}" in {where} is {_article(existing)} lab',
            f"{_article(kind)} lab, or none of that name",
            f'choose another --name, or "kgpu lab down --name {name}" first',
        )
    if (existing or kind) == REAL:
        return _real(name, where, progress)
    from kgpu.lab.embedded.lab import EmbeddedLab
    from kgpu.lab.embedded.model import FirstNode

    return EmbeddedLab(name, where, progress, first=None if existing else FirstNode())


def _article(kind: str) -> str:
    return f"an {kind}" if kind == EMBEDDED else f"a {kind}"


def _real(name: str, folder: Path, progress: Progress) -> Lab:
    from kgpu.lab.real import cluster, model, state

    lab_state = state.load(model.LabPaths(folder).state)
    spec = model.LabSpec(name=name)
    if lab_state is not None:
        spec = model.LabSpec(name=lab_state.name, profile=lab_state.profile, gpus=lab_state.gpus, agent=lab_state.agent)
    return cluster.RealLab(spec, folder=folder, progress=progress)
