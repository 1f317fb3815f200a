"""Decides what follows from results: files, the Node's condition, advice, and when to look again. Pure.

Read this first: the checks' own rules are in ``checks/``, the results in ``model``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.formats import validation_report
from kgpu.formats.validation_report import CheckTrouble, ValidationReport
from kgpu.hw.port import Inventory
from kgpu.validator import files
from kgpu.validator.checks.cuda import CudaTarget, targets
from kgpu.validator.model import Check, CheckResult, DeviceResult, NodeValidation, Status, waiting
from kgpu.validator.modules import BY_COMPONENT, SIDE_MODULES, missing_modules

CALM_SECONDS: Final = 60.0
"""How often everything but CUDA is checked while all checks pass."""
PATIENCE: Final[Mapping[Check, float]] = {Check.TOOLKIT: 30.0, Check.PLUGIN: 150.0}
"""Seconds after which a waiting check counts as failed; 150 is the replaced program's."""
MAX_MESSAGE: Final = 1000
ALL_PASSED: Final = validation_report.report(())
NEEDS: Final[Mapping[Check, tuple[Check, ...]]] = {
    Check.DRIVER: (),
    Check.TOOLKIT: (Check.DRIVER,),
    Check.CUDA: (Check.DRIVER,),
    Check.PLUGIN: (Check.DRIVER, Check.TOOLKIT, Check.CUDA),
}
"""The checks that must be ready before each check; the device plugin waits for those of the last row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedCondition:
    """The Node's condition ``kgpu.dev/Validated``, and the same as a report."""

    status: str
    reason: str
    message: str
    report: ValidationReport = ALL_PASSED


def blocked(check: Check, results: Mapping[Check, CheckResult]) -> CheckResult | None:
    """The WAITING result of a check that can't be made yet; None if it can."""
    for need in NEEDS[check]:
        result = results.get(need)
        if result is not None and not result.ready:
            reason = result.trouble.what if result.trouble else str(result.status)
            return waiting(
                check,
                CheckTrouble(
                    what=f"the {need} check comes first ({reason})", expected=f"{need} ready", remedy=f"see {need}"
                ),
            )
    return None


def lacks_the_plugin_alone(report: NodeValidation) -> bool:
    """Whether only the plugin check has not passed, and it waits."""
    return {result.check for result in report.results if result.status not in (Status.PASSED, Status.SKIPPED)} == {
        Check.PLUGIN
    } and any(result.status is Status.WAITING for result in report.results)


def impatient(result: CheckResult, waited: float) -> CheckResult:
    """The result, failed if it has waited too long. ``waited`` is in seconds."""
    limit = PATIENCE.get(result.check)
    if result.status is not Status.WAITING or limit is None or waited < limit:
        return result
    devices = tuple(
        replace(device, status=Status.FAILED) if device.status is Status.WAITING else device
        for device in result.devices
    )
    return replace(result, status=Status.FAILED, devices=devices)


def to_run(
    inventory: Inventory, known: Mapping[str, DeviceResult], due: Mapping[str, float], now: float
) -> list[CudaTarget]:
    """The devices to run CUDA on: those without a result, and those that did not pass and are due for a retry."""
    return [
        target
        for target in targets(inventory)
        if target.uuid not in known
        or (known[target.uuid].status is not Status.PASSED and now >= due.get(target.uuid, now))
    ]


def still_known(inventory: Inventory, known: Mapping[str, DeviceResult]) -> dict[str, DeviceResult]:
    """The results of devices that still exist and are usable; one that was lost has to be tested again."""
    present = {target.uuid for target in targets(inventory)}
    return {uuid: result for uuid, result in known.items() if uuid in present}


def files_of(report: NodeValidation) -> dict[str, bytes | None]:
    """The content of each of our files, None for those that must not exist."""
    wanted: dict[str, bytes | None] = dict.fromkeys(files.OURS)
    for result in report.results:
        if result.ready:
            text = files.driver_ready_text(report.roots) if result.check is Check.DRIVER else ""
            wanted[files.ready(result.check)] = text.encode()
        else:
            wanted[files.not_ready(result.check)] = f"{result.reason() or result.status}\n".encode()
    for row in SIDE_MODULES:
        if row.module in report.loaded_modules:
            wanted[files.ready(row.component)] = b""
    for component, trouble in _missing(report).items():
        wanted[files.not_ready(component)] = f"{trouble.one_line()}\n".encode()
    wanted[files.REPORT] = files.encode_report(report)
    return wanted


def _missing(report: NodeValidation) -> dict[str, CheckTrouble]:
    return missing_modules(report.asked_modules, report.loaded_modules)


def condition_of(report: NodeValidation) -> ValidatedCondition:
    """The condition: True if every check passed, False if one failed, Unknown otherwise."""
    data = report_of(report)
    bad = [result for result in report.results if result.status is Status.FAILED]
    open_ = [result for result in report.results if result.status is Status.WAITING]
    for status, results in (("False", bad), ("Unknown", open_)):
        if results:
            first = results[0]
            some = first.ready and first.status is Status.FAILED
            word = "DevicesFailed" if some else "Failed" if first.status is Status.FAILED else "Pending"
            return ValidatedCondition(
                status=status,
                reason=f"{str(first.check).capitalize()}{word}",
                message=_cut("; ".join([f"{first.check}: {first.reason() or 'not known yet'}", *_facts(first)])),
                report=data,
            )
    if not report.results:
        return ValidatedCondition(
            status="Unknown", reason="Validating", message="no check has been made yet", report=data
        )
    facts = "; ".join(fact for result in report.results for fact in _facts(result)[-1:])
    return ValidatedCondition(
        status="True", reason="Validated", message=_cut(f"every check passed: {facts}"), report=data
    )


def report_of(report: NodeValidation) -> ValidationReport:
    """What did not pass, for the node's annotation."""
    open_ = (result for result in report.results if result.status in {Status.FAILED, Status.WAITING})
    return validation_report.report(tuple(map(_check, open_)), report.boot)


def _check(result: CheckResult) -> validation_report.UnpassedCheck:
    return validation_report.UnpassedCheck(
        check=result.check,
        status=result.status,
        trouble=result.trouble,
        devices=tuple(
            validation_report.UnpassedDevice(
                uuid=device.uuid, gpu=device.gpu, name=device.name, index=device.index, trouble=device.trouble
            )
            for device in result.failed_devices
            if device.trouble is not None
        ),
    )


def _facts(result: CheckResult) -> list[str]:
    facts = [*result.evidence]
    facts += [text for device in result.failed_devices for text in device.evidence]
    return facts


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def summary(report: NodeValidation) -> tuple[bool, str]:
    """Whether this node can take work, and one line for the role's state."""
    for result in report.results:
        if not result.ready:
            return False, f"{result.check}: {result.reason() or 'not known yet'}"
    partly = [f"{result.check}: {result.reason()}" for result in report.results if result.status is Status.FAILED]
    if partly:
        return True, "; ".join(partly)
    cuda = report.result(Check.CUDA)
    return bool(report.results), (cuda.evidence[-1] if cuda and cuda.evidence else "")


def advice(old: NodeValidation, new: NodeValidation) -> Iterator[Advice]:
    """Advice on changes that people should know. Waiting is only reported once it has become a failure."""
    for result in new.results:
        before = old.result(result.check)
        yield from _check_news(before, result)
        known = {device.uuid: device for device in before.devices} if before else {}
        for device in result.devices:
            yield from _device_news(result.check, known.get(device.uuid), device)
    yield from _module_news(old, new)


def _module_news(old: NodeValidation, new: NodeValidation) -> Iterator[Advice]:
    """Modules that were loaded and are gone. Of one that is still to come, the driver's pod tells."""
    for component, trouble in _missing(new).items():
        if BY_COMPONENT[component].module in old.loaded_modules:
            yield Advice(
                subject=component, what=f"{BY_COMPONENT[component].setting} is no longer in force here",
                why=trouble.what, severity=Severity.WARNING, remedy=trouble.remedy, reason="ModuleGone",
            )  # fmt: skip


def _word(check: Check) -> str:
    return str(check).capitalize()


def _check_news(before: CheckResult | None, now: CheckResult) -> Iterator[Advice]:
    was = before.trouble if before and before.status is Status.FAILED else None
    if now.status is Status.FAILED and now.trouble is not None and now.trouble != was:
        yield Advice(
            subject=str(now.check), what=f"the {now.check} check failed", why=now.trouble.what, evidence=now.evidence,
            severity=Severity.ERROR, remedy=now.trouble.remedy, reason=f"{_word(now.check)}Failed",
        )  # fmt: skip
    if now.status is Status.PASSED and (before is None or before.status is not Status.PASSED):
        bad = before is not None and before.status is Status.FAILED
        yield Advice(
            subject=str(now.check), what=f"the {now.check} check passed", why="everything that it looks at is in order",
            evidence=(*now.evidence, *now.notes), reason="ValidationPassed" if bad else "CheckPassed",
        )  # fmt: skip


def _device_news(check: Check, before: DeviceResult | None, now: DeviceResult) -> Iterator[Advice]:
    if now.status is Status.FAILED and now.trouble and (before is None or before.trouble != now.trouble):
        yield Advice(
            subject=now.uuid, what=f"{now.name} failed the {check} check", why=now.trouble.what, evidence=now.evidence,
            severity=Severity.ERROR, remedy=now.trouble.remedy, reason=f"{_word(check)}Failed",
        )  # fmt: skip
    elif now.status is Status.PASSED and before is not None and before.status is Status.FAILED:
        yield Advice(
            subject=now.uuid, what=f"{now.name} passes the {check} check again", why="its trouble is over",
            evidence=now.evidence, reason="ValidationPassed",
        )  # fmt: skip
    elif now.status is Status.SKIPPED and (before is None or before.status is not Status.SKIPPED):
        yield Advice(
            subject=now.uuid, what=f"{now.name} was not tried in the {check} check", why="; ".join(now.evidence),
            reason="CheckSkipped",
        )  # fmt: skip


def holds(former: NodeValidation, *, boot: str) -> bool:
    """Whether an earlier run's report is valid, if the driver is the same. Boots without an ID never match."""
    return bool(boot and former.boot == boot and former.driver_version)


def restorable(former: NodeValidation) -> dict[str, DeviceResult]:
    """The good CUDA results, which are kept; others have to be tested again."""
    result = former.result(Check.CUDA)
    return {device.uuid: device for device in result.devices if device.good} if result else {}


def successes(old: NodeValidation, results: Iterable[CheckResult], now: float) -> tuple[tuple[str, float], ...]:
    """When each check last changed to passed, in whole seconds since the epoch."""
    times = dict(old.times)
    for result in results:
        before = old.result(result.check)
        if result.status is Status.PASSED and (before is None or before.status is not Status.PASSED):
            times[str(result.check)] = float(int(now))
    return tuple(sorted(times.items()))
