"""The validator's settings, and the driver's place for readers of ``driver-ready``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR, VALIDATIONS_DIR
from kgpu.formats.settings import WITHOUT_EFFECT, Setting, resolve
from kgpu.host.root import DriverRoot
from kgpu.validator.model import Check, Roots

CUDA_SECONDS: Final = 30.0
"""A first CUDA program on an idle GPU without persistence can take seconds; on a healthy one never half a minute."""
AT_ONCE: Final = 2
"""How many devices are tested at once: a CUDA process takes over 100 MB of the agent's memory."""

INTERIM_SECONDS: Final = 3.0
GRACE_SECONDS: Final = 60.0
"""A restart of the driver library or a slow answer is over by then; a missing driver is not."""
RECHECK_SECONDS: Final = 600.0
LEAST_RECHECK_SECONDS: Final = 60
RECHECK: Final = names.ENV_CUDA_RECHECK
_WORKLOAD: Final = f"{Check.CUDA}.WITH_WORKLOAD"


def _read_recheck(value: Any, where: str) -> float:
    text = str(value)
    good = text.isascii() and text.isdecimal() and len(text) < 10
    if not good or 0 < int(text) < LEAST_RECHECK_SECONDS:
        raise ConfigError(
            f"{where} is {text!r:.40}",
            f"a whole number of seconds, {LEAST_RECHECK_SECONDS} or more, 0 for never",
            "correct RECHECK_SECONDS in validator.cuda.env of the ClusterPolicy",
        )
    return float(text)


_RECHECK: Final = Setting(
    attr="recheck_seconds", envs=(RECHECK,), read=_read_recheck, default=RECHECK_SECONDS,
    help=f"Seconds after which CUDA runs again on an idle device, {LEAST_RECHECK_SECONDS} or more; 0: never.",
)  # fmt: skip
VARIABLES: Final = (
    _RECHECK,
    Setting(attr="workload", envs=(_WORKLOAD,), default="true", help="false: the cuda check is left out."),
    # The toolkit makes the links, and the operator passes this variable on to it.
    Setting(attr="no_links", envs=(f"{Check.DRIVER}.{names.ENV_NO_DEVICE_LINKS}",), default="false",
            help="true: the toolkit makes no links to device nodes in /dev/char."),
)  # fmt: skip
"""Variables of one check, with its name and a dot as prefix."""
IDLE: Final = (
    Setting(attr="with_workload", envs=("WITH_WORKLOAD",), usual=("false",),
            idle="kgpu's check of this needs no pod of its own"),
    Setting(attr="with_wait", envs=("WITH_WAIT",), usual=("true",),
            idle="kgpu's checks are made again until they pass"),
    Setting(attr="interval", envs=("SLEEP_INTERVAL_SECONDS",), idle="kgpu looks again when something has changed"),
    Setting(attr="skip_init", envs=("DRIVER_VALIDATION_SKIP_GPU_INIT",), usual=("false",),
            idle="kgpu asks the driver about each GPU, with a deadline of its own"),
)  # fmt: skip
"""Variables of any other check that have no effect."""
_IN_EFFECT: Final = frozenset(name for row in VARIABLES for name in row.envs)
_IDLE: Final = {name: row for row in IDLE for name in row.envs}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorSettings:
    """``checks`` run in order, except those in ``skip``, which maps them to reasons.

    ``cuda_seconds`` is the deadline for one device, ``at_once`` how many are tested at a time, ``interim_seconds`` how
    often interim results are published during the tests. ``grace_seconds`` is how long a driver that has answered
    before may be unreadable before that counts. ``recheck_seconds`` is how often CUDA runs again on an idle device, 0
    for never. ``host_root`` is the host's ``/`` as this process sees it.
    """

    checks: tuple[Check, ...] = tuple(Check)
    folder: Path = Path(VALIDATIONS_DIR)
    cdi_dirs: tuple[Path, ...] = (Path(CDI_STATIC_DIR), Path(CDI_DIR))
    skip: Mapping[Check, str] = field(default_factory=dict)
    cuda_seconds: float = CUDA_SECONDS
    at_once: int = AT_ONCE
    interim_seconds: float = INTERIM_SECONDS
    grace_seconds: float = GRACE_SECONDS
    recheck_seconds: float = RECHECK_SECONDS
    host_root: Path = Path("/")


def choose_checks(words: Iterable[str]) -> tuple[Check, ...]:
    """The checks that the words name, in order; all of them for no words. Raises ConfigError."""
    names = [word.strip() for text in words for word in text.split(",") if word.strip()]
    known = {str(check): check for check in Check}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f'there is no check "{name}"' + (f"; {hint}" if hint else ""),
                f"one or more of: {', '.join(known)}",
                "correct it",
            )
    return tuple(check for name, check in known.items() if name in names or not names)


def skipped_checks(env: Mapping[str, str], *, toolkit: bool) -> dict[Check, str]:
    """The checks that this node's validator leaves out, with reasons.

    ``toolkit`` says whether something on this node writes CDI specs. Variables of one check have its name and a dot as
    prefix; ``WITH_WORKLOAD=false`` for cuda leaves CUDA out, as in the replaced program.
    """
    skipped: dict[Check, str] = {}
    if not toolkit:
        skipped[Check.TOOLKIT] = "the toolkit is not enabled on this node"
    if env.get(_WORKLOAD, "").lower() == "false":
        skipped[Check.CUDA] = "WITH_WORKLOAD=false leaves it out"
    return skipped


def without_effect(env: Mapping[str, str]) -> Iterator[Advice]:
    """Warnings about the variables of single checks that have no effect."""
    for key in sorted(env):
        check, dot, name = key.partition(".")
        if not dot or check not in tuple(Check) or key in _IN_EFFECT:
            continue
        row = _IDLE.get(name) or Setting(attr=name, idle=f"the check of the {check} reads no such variable")
        if env[key].strip().lower() not in (row.usual or ("",)):
            yield Advice(
                subject=f"validator.{check}.env",
                what=f"{name} in validator.{check}.env has no effect",
                why=row.idle,
                evidence=(f"{name}: {env[key]!r:.200}",),
                severity=Severity.WARNING,
                remedy=f"take {name} out of validator.{check}.env",
                reason=WITHOUT_EFFECT,
            )


def recheck_seconds(env: Mapping[str, str]) -> float:
    """How often CUDA runs again on idle devices: ``cuda.RECHECK_SECONDS``, 0 for never. Raises ConfigError."""
    seconds: float = resolve((_RECHECK,), env=env).values[_RECHECK.attr]
    return seconds


def roots_of(root: DriverRoot, host_root: Path) -> Roots:
    """The paths of the driver, the host's own or one that a container has installed, on the host and here."""
    host_driver = root.files.host == "/" or root.files.here in {Path("/"), host_root}
    return Roots(
        host_driver=host_driver,
        driver="/" if host_driver else root.files.host,
        driver_here=str(root.files.here),
        dev=root.dev.host,
        dev_here=str(root.dev.here),
    )
