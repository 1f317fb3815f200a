"""What ``kgpu cdi generate`` is told: strategies, kind, output; checked here so that a typo never reaches a spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.cdi import FORMATS, kind_of
from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR

STRATEGIES: Final = ("index", "uuid", "type-index")
DEFAULT_STRATEGIES: Final = ("index", "uuid")
SPEC_DIRS: Final = (CDI_STATIC_DIR, CDI_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    """``kind`` is vendor/class; ``strategies`` name each device once per entry, in this order."""

    kind: str
    strategies: tuple[str, ...]
    all_device: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """Where a spec goes (None: standard output) and in which form."""

    path: Path | None
    form: str


def generate_config(
    *, vendor: str, device_class: str, strategies: Sequence[str], all_device: bool = True
) -> GenerateConfig:
    """Checked settings. Raises ConfigError; strategies may each hold a comma-separated list."""
    chosen = tuple(dict.fromkeys(part for item in strategies for part in item.split(",") if part)) or DEFAULT_STRATEGIES
    for strategy in chosen:
        if strategy not in STRATEGIES:
            raise _unknown("device name strategy", strategy, STRATEGIES)
    return GenerateConfig(kind=kind_of(vendor, device_class), strategies=chosen, all_device=all_device)


def output(path: str, form: str) -> Output:
    """The file and form: an unset form follows the file's extension, and a file gets one when it has neither.

    A form and an extension that contradict each other are an error (the replaced program only warned).
    """
    if form and form not in FORMATS:
        raise _unknown("format", form, FORMATS)
    if not path or path == "-":
        return Output(None, form or "yaml")
    by_extension = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}.get(Path(path).suffix, "")
    if form and by_extension and form != by_extension:
        raise ConfigError(
            f"--format {form} contradicts the extension of {path}", f"a file that ends in .{form}", "change one of both"
        )
    chosen = form or by_extension or "yaml"
    # Runtimes read *.yaml and *.json only.
    keeps = Path(path).suffix in {".yaml", ".json"}
    return Output(Path(path if keeps else f"{path}.{chosen}"), chosen)


def _unknown(what: str, value: str, known: Sequence[str]) -> ConfigError:
    hint = did_you_mean(value, known)
    return ConfigError(
        f'there is no {what} "{value}"{"; " if hint else ""}{hint}', f"one of: {', '.join(known)}", "choose one"
    )
