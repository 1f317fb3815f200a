"""Probes, lifecycle hooks and the actions that both share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, not_negative, not_supported, port_or_name

_PLAIN: Final = (
    "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS TERM TRAP "
    "TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX"
)
_LINUX: Final = frozenset(
    {
        *(f"SIG{name}" for name in _PLAIN.split(" ")),
        *(f"SIGRTMIN+{number}" for number in range(1, 16)),
        *(f"SIGRTMAX-{number}" for number in range(1, 15)),
    }
)
_BY_SYSTEM: Final = {"linux": _LINUX, "windows": frozenset({"SIGKILL", "SIGTERM"})}


def _exec(errors: Errors, path: str, action: Object, grace: int | None) -> None:
    del grace
    if not action.get("command"):
        errors.append(required(f"{path}.command"))


def _http(errors: Errors, path: str, action: Object, grace: int | None) -> None:
    del grace
    if not action.get("path"):
        errors.append(required(f"{path}.path"))
    port_or_name(errors, f"{path}.port", action.get("port", 0))
    scheme = action.get("scheme", "")
    if scheme not in {"HTTP", "HTTPS"}:
        errors.append(not_supported(f"{path}.scheme", scheme, ("HTTP", "HTTPS")))
    for header in action.get("httpHeaders") or ():
        for message in texts.header_name(header.get("name", "")):
            errors.append(bad_value(f"{path}.httpHeaders", header.get("name", ""), message))


def _tcp(errors: Errors, path: str, action: Object, grace: int | None) -> None:
    del grace
    port_or_name(errors, f"{path}.port", action.get("port", 0))


def _sleep(errors: Errors, path: str, action: Object, grace: int | None) -> None:
    seconds = action.get("seconds", 0)
    if grace is not None and not 0 <= seconds <= grace:
        words = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
        errors.append(bad_value(path, seconds, words))


_ACTIONS: Final[dict[str, Callable[[Errors, str, Object, int | None], None]]] = {
    "exec": _exec, "httpGet": _http, "tcpSocket": _tcp, "grpc": _tcp, "sleep": _sleep,
}  # fmt: skip
_OF_PROBES: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_OF_HOOKS: Final = ("exec", "httpGet", "tcpSocket", "sleep")


def _handler(errors: Errors, path: str, handler: Object, names: tuple[str, ...], grace: int | None) -> None:
    present = [name for name in names if name in handler]
    for name in present[:1]:
        _ACTIONS[name](errors, f"{path}.{name}", handler[name], grace)
    for name in present[1:]:
        errors.append(forbidden_field(f"{path}.{name}", "may not specify more than 1 handler type"))
    if not present:
        errors.append(required(path, "must specify a handler type"))


def probe(errors: Errors, path: str, spec: Object | None, kind: str, grace: int | None) -> None:
    """Check a probe, if there is one. ``kind`` is livenessProbe, readinessProbe or startupProbe."""
    if spec is None:
        return
    _handler(errors, path, spec, _OF_PROBES, grace)
    for name in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        not_negative(errors, f"{path}.{name}", spec.get(name))
    patience = spec.get("terminationGracePeriodSeconds")
    if patience is not None and patience <= 0:
        errors.append(bad_value(f"{path}.terminationGracePeriodSeconds", patience, "must be greater than 0"))
    if kind == "readinessProbe":
        if patience is not None:
            words = "must not be set for readinessProbes"
            errors.append(bad_value(f"{path}.terminationGracePeriodSeconds", patience, words))
    elif spec.get("successThreshold") != 1:
        errors.append(bad_value(f"{path}.successThreshold", spec.get("successThreshold", 0), "must be 1"))


def lifecycle(errors: Errors, path: str, hooks: Object | None, grace: int | None, system: str) -> None:
    """Check postStart, preStop and stopSignal. ``system`` is spec.os.name, "" when it is not set."""
    for name in ("postStart", "preStop"):
        handler = (hooks or {}).get(name)
        if handler is not None:
            _handler(errors, f"{path}.{name}", handler, _OF_HOOKS, grace)
    signal = (hooks or {}).get("stopSignal")
    if signal is None:
        return
    if not system:
        words = "may not be set for containers with empty `spec.os.name`"
        errors.append(forbidden_field(f"{path}.stopSignal", words))
    elif system in _BY_SYSTEM and signal not in _BY_SYSTEM[system]:
        errors.append(not_supported(f"{path}.stopSignal", signal, sorted(_BY_SYSTEM[system])))
