"""What a generation found: JSON data for programs, lines for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kgpu.base.errors import HostError
from kgpu.base.files import write_atomic
from kgpu.formats.cdi import qualified_name
from kgpu.toolkit.model import Generated

if TYPE_CHECKING:
    from kgpu.toolkit.specs import FoundSpec


def as_data(generated: Generated, files: Sequence[str] = ()) -> dict[str, Any]:
    """``devices`` are qualified names; ``items`` each thing that was looked for; ``missing`` what is not there and
    breaks something; ``specs`` the specs themselves where they were not written to ``files``.
    """
    spec, driver = generated.spec, generated.driver
    return {
        "mode": generated.mode,
        "modeReason": generated.why,
        "kind": spec.kind,
        "cdiVersion": spec.cdi_version,
        "files": list(files),
        "devices": [
            qualified_name(each.kind, device.name) for each in generated.specs.values() for device in each.devices
        ],
        "driver": {
            "version": driver.version,
            "root": driver.root,
            "layout": driver.layout,
            "libraryFolders": list(driver.folders),
        },
        "missing": [item.note() for item in driver.missing() if item.breaks],
        "items": [
            {
                "kind": item.kind,
                "name": item.name,
                "found": item.found,
                "path": item.path,
                "why": item.why,
                "breaks": item.breaks,
                "essential": item.essential,
            }
            for item in driver.items
        ],
        "notes": list(generated.notes),
        **({} if files else {"specs": [msgspec.to_builtins(spec) for spec in generated.specs.values()]}),
    }


def twin_notes(files: Iterable[str], specs: Sequence[FoundSpec]) -> list[str]:
    """What files of the spec folders say of the devices that were written to ``files`` (CDI's rules of priority)."""
    written = {os.path.realpath(file) for file in files}
    ours = [spec for spec in specs if os.path.realpath(spec.path) in written]
    notes = []
    for mine in ours:
        for foreign in specs:
            both = len(set(mine.names) & set(foreign.names))
            if not both or foreign in ours:
                continue
            counted = "1 device is" if both == 1 else f"{both} devices are"
            if foreign.priority == mine.priority:
                notes.append(f"{counted} also in {foreign.path}, so that runtimes resolve neither: remove it")
            else:
                first = max(mine, foreign, key=lambda spec: spec.priority).path
                notes.append(f"{counted} also in {foreign.path}; runtimes take those of {first}")
    return notes


def write_report(data: Mapping[str, Any], path: Path) -> None:
    """Write the data whole, mode 0644. Raises HostError."""
    try:
        write_atomic(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise HostError(
            f"{path} can't be written: {error.strerror}", "a folder that may be written", "choose another --report"
        ) from error


def as_lines(generated: Generated) -> list[str]:
    """One line per thing that a person should know."""
    reason = [f"mode {generated.mode}: {generated.why}"] if generated.why else []
    return [*reason, *(f"note: {note}" for note in generated.notes)]
