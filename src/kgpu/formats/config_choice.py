"""Which of several named configurations a node uses: label, then default, then fallbacks. Pure.

The rules are config-manager's, with its defects left out: a label that names nothing is an error and nothing else is
chosen in its place, and every error says which names there are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL

NAMED_FALLBACK: Final = "default"
REFUSED: Final = "ConfigRefused"
"""The reason of Events, and the word for roles, where a configuration can't be used."""


class Fallback(enum.StrEnum):
    """What to try when neither label nor default name a configuration, in the order given."""

    NAMED = "named"  # the one called "default"
    SINGLE = "single"  # the only one
    EMPTY = "empty"  # none: all defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """One configuration as it stands: ``name`` is what a person would look for, e.g. ``file /config/config.yaml``.

    An empty ``text`` means all defaults. ``problem`` says that no text could be found (the label names a missing key,
    the file is unreadable): the last good configuration then stays in force.
    """

    name: str
    text: str = ""
    problem: UserError | None = field(default=None, compare=False)
    problem_text: str = ""  # what makes two problems different


class ConfigClashError(ConfigError):
    """New options of a program that its configuration does not go with, while the former ones do."""


def parse_fallbacks(text: str) -> tuple[Fallback, ...]:
    """A comma-separated list such as ``named,single``. Raises ConfigError for an unknown word."""
    return tuple(_fallback(word) for word in (part.strip() for part in text.split(",")) if word)


def choose(
    available: Iterable[str],
    *,
    label: str = "",
    default: str = "",
    fallbacks: Sequence[Fallback] = (),
    label_name: str = DEVICE_PLUGIN_CONFIG_LABEL,
) -> str | None:
    """The name of the configuration to use; None means the empty one. Raises ConfigError when nothing can be chosen.

    ``label`` is the node label's value and ``default`` the configured default, "" when absent. Names that begin with
    ``..`` are the volume's own bookkeeping and don't count. ``label_name`` is what the label is called.
    """
    known = sorted(name for name in available if not name.startswith(".."))
    for name, origin in ((label, f"the node label {label_name}"), (default, "the default")):
        if name:
            if name not in known:
                raise _missing(name, origin, known)
            return name
    for fallback in fallbacks:
        if fallback is Fallback.EMPTY:
            return None
        if fallback is Fallback.NAMED and NAMED_FALLBACK in known:
            return NAMED_FALLBACK
        if fallback is Fallback.SINGLE and len(known) == 1:
            return known[0]
    tried = ", ".join(fallbacks) or "none"
    raise ConfigError(
        f"no configuration is chosen for this node: no label, no default, and no fallback fits ({tried})",
        f"the node label {label_name} or a default, naming {_listed(known)}",
        "set the label on the node, set a default, or add the fallback strategy empty",
    )


def choose_text(
    texts: Mapping[str, str], where: str, *, label: str = "", default: str = "", fallbacks: Sequence[Fallback] = ()
) -> ConfigText:
    """As ``choose``, over configurations at hand; ``where`` says where they are, e.g. ``ConfigMap gpu/configs``.

    Never raises: what can't be chosen is the result's ``problem``.
    """
    try:
        chosen = choose(texts, label=label, default=default, fallbacks=fallbacks)
    except ConfigError as error:
        return problem_text(where, error)
    if chosen is None:
        return ConfigText(name="no configuration (fallback strategy empty)")
    return ConfigText(name=f"{where}, {chosen}", text=texts[chosen])


def problem_text(where: str, error: UserError) -> ConfigText:
    """The configuration that could not be had, for that reason."""
    return ConfigText(name=where, problem=error, problem_text=str(error))


def _fallback(word: str) -> Fallback:
    try:
        return Fallback(word)
    except ValueError:
        raise ConfigError(
            " ".join(f'"{word}" is not a fallback strategy; {did_you_mean(word, list(Fallback))}'.split()).rstrip(";"),
            "a comma-separated list of named, single, empty",
            "correct --fallback-strategies (FALLBACK_STRATEGIES)",
        ) from None


def _missing(name: str, origin: str, known: Sequence[str]) -> ConfigError:
    hint = did_you_mean(name, known)
    return ConfigError(
        f'{origin} names the configuration "{name}", which does not exist' + (f"; {hint}" if hint else ""),
        _listed(known),
        "correct the name, or add a configuration of that name",
    )


def _listed(known: Sequence[str]) -> str:
    return f"one of: {', '.join(known)}" if known else "a configuration, but there is none at all"
