"""Templates of containerd's config (k3s, RKE2): Go text templates that are rendered at each start.

A template is not TOML, so kgpu only appends one block between two marks. A runtime that the rendered config already has
is left out, because containerd does not start with a duplicate table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.host.engines.containerd import additions, layout_of, said_by
from kgpu.host.engines.edited import decode, lookup
from kgpu.host.engines.model import ChangePlan, EngineOffer, EnginePlace, FileChange, Files
from kgpu.host.engines.toml_edit import TomlFile
from kgpu.host.engines.toml_text import table_text

BEGIN: Final = "# BEGIN kgpu: written by kgpu and taken away with it"
END: Final = "# END kgpu"
BASE: Final = '{{ template "base" . }}'


def configure(place: EnginePlace, wanted: EngineOffer, files: Files) -> ChangePlan:
    """The change of the template; ``files`` also has the rendered config. Raises ConfigError."""
    rendered = files.get(place.config)
    if rendered is None:
        raise ConfigError(
            f"there is no {place.config} yet, so what {place.flavour} puts into it isn't known",
            f"{place.flavour} has been started once on this host",
            f"start {place.flavour} first",
        )
    main = TomlFile(without_block(decode(rendered, place.config)).encode(), place.config)
    layout = layout_of(place, main)
    section = said_by(main, layout) or {}
    ours = additions(section, layout, wanted)
    runtimes = lookup(section, ("containerd", "runtimes"), {})
    blocks: list[str] = []
    for name, table in ours["containerd"]["runtimes"].items():
        if name not in runtimes:
            text = table_text((*layout.cri, "containerd", "runtimes", name), table)
            # A runtime that k3s finds by itself at a later start must not appear twice.
            guard = f'{{{{ if not (index .ExtraRuntimes "{name}").BinaryName }}}}' if layout.version > 2 else ""
            blocks.append(f"{guard}\n{text}{{{{ end }}}}\n" if guard else text)
    template = without_block(decode(files.get(place.template) or b"", place.template))
    if not template:
        template = BASE + "\n"
    if not template.endswith("\n"):
        template += "\n"
    if blocks:
        joined = "\n".join(blocks)
        template += f"\n{BEGIN}\n{joined}{END}\n"
    notes = [
        f"{place.config} has a runtime {name} of its own, which stays" for name in runtimes if name in _names(wanted)
    ]
    notes.extend(_unsaid(place, ours))
    before = files.get(place.template)
    after = template.encode() if blocks else before
    TomlFile(as_rendered(place, {**files, place.template: after}), f"{place.config}, as it will be rendered,")
    changes = () if before == after else (FileChange(place.template, before, after, "runtime handlers"),)
    return ChangePlan(changes, tuple(notes))


def as_rendered(place: EnginePlace, files: Files) -> bytes:
    """The rendered config as it will be with this template: the block's content after what is rendered without it."""
    rest = without_block(decode(files.get(place.config) or b"", place.config))
    _, mark, block = decode(files.get(place.template) or b"", place.template).partition(BEGIN)
    lines = [line for line in block.partition(END)[0].splitlines() if not line.startswith("{{")]
    return "\n".join([rest, *(lines if mark else ())]).encode() + b"\n"


def without_block(text: str) -> str:
    """The text without kgpu's block and the blank line before it."""
    head, mark, rest = text.partition(BEGIN)
    if not mark:
        return text
    _, end, tail = rest.partition(END)
    if not end:
        return text
    return head.removesuffix("\n") + tail.removeprefix("\n")


def _names(wanted: EngineOffer) -> frozenset[str]:
    return frozenset(handler.name for handler in wanted.handlers)


def _unsaid(place: EnginePlace, ours: Mapping[str, Any]) -> list[str]:
    """Notes on what the template can't set: tables of the base template can't be opened again."""
    wanted = [key for key in ("enable_cdi", "cdi_spec_dirs") if key in ours]
    if ours["containerd"].get("default_runtime_name"):
        wanted.append("default_runtime_name")
    return [
        f"{key} can't be set through {place.template}: {place.flavour} writes that table itself; "
        f"use a {place.flavour} with containerd 2, or a template of your own that sets it"
        for key in wanted
    ]
