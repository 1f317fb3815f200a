"""The requirements that images state in ``NVIDIA_REQUIRE_*``: what of CUDA, driver and GPU they need.

Spaces separate alternatives, commas what must hold together: ``cuda>=12.4 brand=tesla,driver>=470,driver<471``. What
is not known of a GPU is neither met nor unmet. Versions compare number by number, missing numbers are 0.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.names import ENV_DISABLE_REQUIRE

MAX_LENGTH: Final = 16384
MAX_TOTAL: Final = 4 * MAX_LENGTH
"""Characters of all requirements of one image: a runtime waits while they are read."""
VERSIONS: Final = ("cuda", "driver", "arch")
WORDS: Final = ("brand",)
_CONDITION: Final = re.compile(r"([a-z_]+)(>=|<=|!=|=|<|>)([A-Za-z0-9._+-]+)", re.ASCII)
_VERSION: Final = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,7}", re.ASCII)
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Fulfillment(enum.Enum):
    """Whether something holds; UNKNOWN when that depends on what is not known."""

    UNMET = 0
    UNKNOWN = 1
    MET = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What requirements are about; "" for what is not known.

    ``cuda`` is the newest CUDA that the driver serves, ``arch`` the GPU's compute capability, e.g. ``9.0``.
    """

    cuda: str = ""
    driver: str = ""
    arch: str = ""
    brand: str = ""
    subject: str = ""  # which GPU, for people

    def of(self, name: str) -> str:
        """One property by the name that requirements use."""
        return {"cuda": self.cuda, "driver": self.driver, "arch": self.arch, "brand": self.brand}[name]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison."""

    name: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"

    def verdict(self, facts: GpuFacts) -> Fulfillment:
        """Whether it holds."""
        fact = facts.of(self.name)
        if not fact:
            return Fulfillment.UNKNOWN
        compare = _OPERATORS[self.sign]
        if self.name in WORDS:
            return Fulfillment.MET if compare(fact.lower(), self.value.lower()) else Fulfillment.UNMET
        known = _VERSION.match(fact)
        if known is None:
            return Fulfillment.UNKNOWN
        return Fulfillment.MET if compare(_numbers(known[0]), _numbers(self.value)) else Fulfillment.UNMET


@dataclass(frozen=True, slots=True)
class DriverRequirement:
    """``alternatives``, of each of which every condition must hold."""

    alternatives: tuple[tuple[Comparison, ...], ...]

    def verdict(self, facts: GpuFacts) -> Fulfillment:
        """Whether one alternative holds."""
        return max((_all(alternative, facts) for alternative in self.alternatives), key=lambda verdict: verdict.value)


def parse_requirement(text: str, *, name: str = "the requirement") -> DriverRequirement:
    """Raises ConfigError for what is no requirement."""
    if len(text) > MAX_LENGTH:
        raise _wrong(name, f"it has {len(text)} characters", f"at most {MAX_LENGTH} characters")
    alternatives = tuple(
        tuple(_condition(part.strip(), name) for part in alternative.split(",")) for alternative in text.split()
    )
    if not alternatives:
        raise _wrong(name, "it is empty", "such as cuda>=12.4")
    return DriverRequirement(alternatives)


def unmet(requirements: Mapping[str, str], gpus: Iterable[GpuFacts]) -> ConfigError | None:
    """Why these GPUs can't be given to an image with these requirements (variable to expression); None when they can.

    Every requirement must hold for every GPU. Raises ConfigError for what is no requirement.
    """
    total = sum(map(len, (*requirements, *requirements.values())))
    if total > MAX_TOTAL:
        raise _wrong("what the image requires", f"it has {total} characters", f"at most {MAX_TOTAL} characters")
    parsed = {name: parse_requirement(text, name=name) for name, text in requirements.items()}
    alike: dict[tuple[str, ...], GpuFacts] = {}
    for gpu in gpus:
        alike.setdefault((gpu.cuda, gpu.driver, gpu.arch, gpu.brand), gpu)
    for gpu in alike.values():
        for name, requirement in parsed.items():
            if requirement.verdict(gpu) is Fulfillment.UNMET:
                return ConfigError(
                    f'the image\'s requirement {name} "{requirements[name][:200]}" is not met here: {_known(gpu)}',
                    "a driver and GPU as the image requires them",
                    f"take a newer driver, another node or an older image, or set {ENV_DISABLE_REQUIRE}=true",
                )
    return None


def _known(gpu: GpuFacts) -> str:
    facts = [f"{name} {gpu.of(name)}" for name in (*VERSIONS, *WORDS) if gpu.of(name)]
    return (f"{gpu.subject} has " if gpu.subject else "") + ", ".join(facts)


def _all(conditions: tuple[Comparison, ...], facts: GpuFacts) -> Fulfillment:
    return min((comparison.verdict(facts) for comparison in conditions), key=lambda verdict: verdict.value)


def _condition(text: str, where: str) -> Comparison:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise _wrong(where, f'"{text[:80]}" is no condition', "such as cuda>=12.4, with = != < <= > or >=")
    name, sign, value = match.groups()
    if name not in (*VERSIONS, *WORDS):
        hint = did_you_mean(name, (*VERSIONS, *WORDS))
        raise _wrong(where, f'it asks about "{name[:40]}"', f"cuda, driver, arch or brand{'; ' if hint else ''}{hint}")
    if name in WORDS and sign not in {"=", "!="}:
        raise _wrong(where, f'"{text[:80]}" puts words in an order', "= or != for a brand")
    if name in VERSIONS and not _VERSION.fullmatch(value):
        raise _wrong(where, f'"{value[:40]}" is no version', "numbers with dots between them")
    return Comparison(name, sign, value)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _wrong(where: str, what: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{where} can't be understood: {what}", expected, f"correct the image, or set {ENV_DISABLE_REQUIRE}=true"
    )
