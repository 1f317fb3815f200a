"""Where the config of a label is looked up: a file that was given, else what this node's GPUs can have, else a file of
defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kgpu.base.errors import ConfigError, UserError
from kgpu.formats import yaml_text
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.mig_config import MigConfigs, MigEntry, parse_mig_configs
from kgpu.mig.generate import generate
from kgpu.mig.survey import SurveyedGpu


class ConfigSource(Protocol):
    """The text of a file, followed."""

    def current(self) -> ConfigText | None:
        """What was last read, with its problem if it can't be; None before."""
        ...

    async def next(self, after: ConfigText | None) -> ConfigText:
        """The text if it differs from ``after`` (None: in any case), else wait until it does."""
        ...


@dataclass(frozen=True, slots=True)
class ChosenConfig:
    """A config's entries. ``generated`` is the file that was made for this node, "" where a file was given.
    ``warnings`` are about what the file has and has no effect.
    """

    entries: tuple[MigEntry, ...]
    generated: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class ConfigLookup:
    """``given`` are the files of which the first that can be read counts; without any the configs are generated, and
    ``defaults`` are asked for what is not among those.
    """

    given: Sequence[ConfigSource] = ()
    defaults: Sequence[ConfigSource] = ()
    _parsed: dict[str, MigConfigs] = field(default_factory=dict)

    def choose(self, name: str, gpus: Sequence[SurveyedGpu]) -> ChosenConfig:
        """The config of this name. Raises ConfigError."""
        if self.given:
            return self._of_file(self.given, name)
        try:
            document = generate(gpus)
        except UserError as without:
            if not self.defaults:
                return self._without_mig(name, without)
            return self._of_file(self.defaults, name)
        text = yaml_text.write(document)
        configs = self._configs(text, "the configs of this node")
        if name in configs.configs or not self.defaults:
            return ChosenConfig(configs.chosen(name)[1], generated=text)
        chosen = self._of_file(self.defaults, name)
        return ChosenConfig(chosen.entries, generated=text, warnings=chosen.warnings)

    def _of_file(self, sources: Sequence[ConfigSource], name: str) -> ChosenConfig:
        found = [text for source in sources if (text := source.current()) is not None]
        text = next((one for one in found if one.problem is None), found[0] if found else None)
        if text is None:
            raise ConfigError("the MIG config file was not read yet", "a config file", "wait for it")
        if text.problem is not None:
            raise text.problem
        configs = self._configs(text.text, text.name)
        return ChosenConfig(configs.chosen(name)[1], warnings=configs.warnings)

    def _configs(self, text: str, source: str) -> MigConfigs:
        known = self._parsed.get(text)
        if known is None:
            known = parse_mig_configs(text, source=source)
            self._parsed = {text: known}  # the one before is not asked for again
        return known

    def _without_mig(self, name: str, without: UserError) -> ChosenConfig:
        """Without a GPU that has MIG there is one thing to have."""
        if name == "all-disabled":
            return ChosenConfig((MigEntry(enabled=False),))
        raise without
