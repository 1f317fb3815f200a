"""Jobs and CronJobs."""

from __future__ import annotations

import json
from typing import Any, Final

from kgpu.base.times import time_zone
from kgpu.lab.embedded.status import OMIT, Object, bad_value, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    finalizer_names,
    immutable,
    label_selector,
    metadata,
    metadata_update,
    not_negative,
    not_supported,
    one_of,
    selector_matches,
    syntax,
    too_long,
    too_many,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.cron import schedule_error
from kgpu.lab.embedded.types.validate.pod import template

_UID_LABELS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")
_NAME_LABELS: Final = ("job-name", "batch.kubernetes.io/job-name")
_ACTIONS: Final = ("Count", "FailIndex", "FailJob", "Ignore")


def job(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a Job."""
    meta = obj["metadata"]
    if subresource == "status" and old is not None:
        metadata_update(errors, meta, old["metadata"])
        _status(errors, obj.get("status") or {})
        return
    metadata(errors, meta, namespaced=True, rule=texts.subdomain)
    finalizer_names(errors, meta)
    spec = obj["spec"]
    if not spec.get("manualSelector") and spec.get("selector") is not None:
        _generated(errors, meta, spec)
    _spec_with_selector(errors, "spec", spec)
    completions = spec.get("completions")
    if spec.get("completionMode") == "Indexed" and completions:
        last = f"{meta.get('name', '')}-{completions - 1}"
        if texts.label(last):
            words = f"will not able to create pod with invalid DNS label: {last}"
            errors.append(bad_value("metadata.name", meta.get("name", ""), words))
    if old is not None:
        metadata_update(errors, meta, old["metadata"])
        _spec_with_selector(errors, "spec", spec)
        _update(errors, spec, old["spec"])


def _generated(errors: Errors, meta: Object, spec: Object) -> None:
    """Check that labels and selector are those that the server has set."""
    if not meta.get("uid"):
        errors.append(required("metadata.uid"))
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    at = "spec.template.metadata.labels"
    expected: dict[str, str] = {}
    for pair in zip(_UID_LABELS, _NAME_LABELS, strict=True):
        for key, value in zip(pair, (meta.get("uid", ""), meta.get("name", "")), strict=True):
            expected[key] = value
            if key not in labels:
                errors.append(required(f"{at}[{key}]", f"must be '{value}'"))
            elif labels[key] != value:
                errors.append(bad_value(f"{at}[{key}]", labels, f"must be '{value}'"))
    if not selector_matches(spec["selector"], expected):
        errors.append(bad_value("spec.selector", spec["selector"], "`selector` not auto-generated"))


def _spec_with_selector(errors: Errors, path: str, spec: Object) -> None:
    _spec(errors, path, spec)
    selector = spec.get("selector")
    if selector is None:
        errors.append(required(f"{path}.selector"))
        return
    label_selector(errors, f"{path}.selector", selector)
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not selector_matches(selector, labels):
        words = "`selector` does not match template `labels`"
        errors.append(bad_value(f"{path}.template.metadata.labels", labels or None, words))


def _spec(errors: Errors, path: str, spec: Object) -> None:
    for name in (
        "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished",
        "backoffLimitPerIndex", "maxFailedIndexes",
    ):  # fmt: skip
        not_negative(errors, f"{path}.{name}", spec.get(name))
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        errors.append(required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    _managed_by(errors, f"{path}.managedBy", spec.get("managedBy"))
    mode = spec.get("completionMode")
    if mode not in {None, "NonIndexed", "Indexed"}:
        errors.append(not_supported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed")))
    if mode == "Indexed":
        _indexed(errors, path, spec)
    elif mode in {None, "NonIndexed"}:
        for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(name) is not None:
                errors.append(bad_value(f"{path}.{name}", spec[name], "requires indexed completion mode"))
    policy = spec.get("podFailurePolicy")
    if policy is not None:
        _failure_policy(errors, f"{path}.podFailurePolicy", policy, spec)
    if spec.get("successPolicy") is not None:
        _success_policy(errors, f"{path}.successPolicy", spec)
    allowed: tuple[str, ...]
    replacement, allowed = spec.get("podReplacementPolicy"), ("Failed", "TerminatingOrFailed")
    if policy is not None:
        allowed = ("Failed",)
    if replacement is not None and replacement not in allowed:
        errors.append(not_supported(f"{path}.podReplacementPolicy", replacement, allowed))
    template(errors, f"{path}.template", spec.get("template") or {})
    restart = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "")
    at = f"{path}.template.spec.restartPolicy"
    if restart in {"", "Always"}:
        errors.append(required(at, 'valid values: "OnFailure", "Never"'))
    elif restart not in {"OnFailure", "Never"}:
        errors.append(not_supported(at, restart, ("OnFailure", "Never")))
    elif policy is not None and restart != "Never":
        errors.append(bad_value(at, restart, 'only "Never" is supported when podFailurePolicy is specified'))


def _managed_by(errors: Errors, path: str, name: str | None) -> None:
    if name is None:
        return
    if not name:
        errors.append(required(path))
        return
    host, slash, rest = name.partition("/")
    if not slash or not host or not rest:
        errors.append(bad_value(path, name, 'must be a domain-prefixed path (such as "acme.io/foo")'))
    else:
        syntax(errors, path, host, texts.subdomain)
    if len(name) > 63:
        errors.append(too_long(path, 63))


def _indexed(errors: Errors, path: str, spec: Object) -> None:
    completions, parallelism = spec.get("completions"), spec.get("parallelism")
    failed = spec.get("maxFailedIndexes")
    if completions is None:
        errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
    if parallelism is not None and parallelism > 100_000:
        words = "must be less than or equal to 100000 when completion mode is Indexed"
        errors.append(bad_value(f"{path}.parallelism", parallelism, words))
    if completions is not None and failed is not None and failed > completions:
        errors.append(bad_value(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions"))
    if failed is not None and failed > 100_000:
        errors.append(bad_value(f"{path}.maxFailedIndexes", failed, "must be less than or equal to 100000"))


def _failure_policy(errors: Errors, path: str, policy: Object, spec: Object) -> None:
    pod = (spec.get("template") or {}).get("spec") or {}
    names = {container.get("name") for field in ("containers", "initContainers") for container in pod.get(field) or ()}
    rules = policy.get("rules") or []
    if len(rules) > 20:
        errors.append(too_many(f"{path}.rules", len(rules), 20))
    for index, rule in enumerate(rules):
        at, action = f"{path}.rules[{index}]", rule.get("action", "")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or []
        if not action:
            errors.append(required(f"{at}.action", f"valid values: {_go_list(_ACTIONS)}"))
        elif action == "FailIndex":
            if spec.get("backoffLimitPerIndex") is None:
                errors.append(bad_value(f"{at}.action", action, "requires the backoffLimitPerIndex to be set"))
        elif action not in _ACTIONS:
            errors.append(not_supported(f"{at}.action", action, _ACTIONS))
        if codes is not None:
            _exit_codes(errors, f"{at}.onExitCodes", codes, names)
        for number, condition in enumerate(conditions):
            condition_path = f"{at}.onPodConditions[{number}]"
            syntax(errors, f"{condition_path}.type", condition.get("type", ""), texts.qualified)
            one_of(errors, f"{condition_path}.status", condition.get("status", ""), ("False", "True", "Unknown"))
        if codes is not None and conditions:
            words = "specifying both OnExitCodes and OnPodConditions is not supported"
            errors.append(bad_value(at, OMIT, words))
        if codes is None and not conditions:
            words = "specifying one of OnExitCodes and OnPodConditions is required"
            errors.append(bad_value(at, OMIT, words))


def _go_list(words: tuple[str, ...]) -> str:
    quoted = " ".join(json.dumps(word) for word in words)
    return f"[{quoted}]"


def _exit_codes(errors: Errors, path: str, codes: Object, names: set[Any]) -> None:
    operator, values = codes.get("operator", ""), codes.get("values") or []
    if not operator:
        errors.append(required(f"{path}.operator", 'valid values: ["In" "NotIn"]'))
    elif operator not in {"In", "NotIn"}:
        errors.append(not_supported(f"{path}.operator", operator, ("In", "NotIn")))
    container = codes.get("containerName")
    if container is not None and container not in names:
        words = "must be one of the container or initContainer names in the pod template"
        errors.append(bad_value(f"{path}.containerName", container, words))
    if not values:
        errors.append(bad_value(f"{path}.values", None, "at least one value is required"))
    elif len(values) > 255:
        errors.append(too_many(f"{path}.values", len(values), 255))
    for index, value in enumerate(values):
        if operator == "In" and value == 0:
            errors.append(bad_value(f"{path}.values[{index}]", value, "must not be 0 for the In operator"))
    if values != sorted(values):
        errors.append(bad_value(f"{path}.values", values, "must be ordered"))


def _success_policy(errors: Errors, path: str, spec: Object) -> None:
    if spec.get("completionMode") != "Indexed":
        shown = {"Rules": spec["successPolicy"].get("rules")}
        errors.append(bad_value(path, shown, "requires indexed completion mode"))
        return
    rules = spec["successPolicy"].get("rules") or []
    if not rules:
        errors.append(
            required(f"{path}.rules", "at least one rules must be specified when the successPolicy is specified")
        )
    if len(rules) > 20:
        errors.append(too_many(f"{path}.rules", len(rules), 20))
    for index, rule in enumerate(rules):
        at, count = f"{path}.rules[{index}]", rule.get("succeededCount")
        if count is None and rule.get("succeededIndexes") is None:
            words = "at least one of succeededCount or succeededIndexes must be specified"
            errors.append(required(at, words))
        not_negative(errors, f"{at}.succeededCount", count)
        completions = spec.get("completions", 0)
        if count is not None and count > completions:
            words = f"must be less than or equal to {completions} (the number of specified completions)"
            errors.append(bad_value(f"{at}.succeededCount", count, words))


def _update(errors: Errors, spec: Object, old: Object) -> None:
    if spec.get("completionMode") != "Indexed":
        immutable(errors, "spec.completions", spec.get("completions"), old.get("completions"))
    elif spec.get("completions") != old.get("completions") and spec.get("completions") != spec.get("parallelism"):
        words = "can only be modified in tandem with spec.parallelism"
        errors.append(bad_value("spec.completions", spec.get("completions"), words))
    immutable(errors, "spec.selector", spec.get("selector"), old.get("selector"))
    immutable(errors, "spec.template", _without_directives(spec, old), _without_directives(old, old))
    for name in ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"):
        immutable(errors, f"spec.{name}", spec.get(name), old.get(name))


def _without_directives(spec: Object, old: Object) -> Object:
    """The pod template, for a suspended Job without the scheduling fields, which may change."""
    pod_template: Object = spec.get("template") or {}
    if not old.get("suspend"):
        return pod_template
    pod = {
        key: value
        for key, value in (pod_template.get("spec") or {}).items()
        if key not in {"nodeSelector", "tolerations", "schedulingGates", "affinity"}
    }
    meta = {
        key: value
        for key, value in (pod_template.get("metadata") or {}).items()
        if key not in {"labels", "annotations"}
    }
    return {**pod_template, "spec": pod, "metadata": meta}


def _status(errors: Errors, status: Object) -> None:
    for name in ("active", "succeeded", "failed", "ready", "terminating"):
        not_negative(errors, f"status.{name}", status.get(name))
    true = {condition.get("type") for condition in status.get("conditions") or () if condition.get("status") == "True"}
    finished = true & {"Complete", "Failed"}
    for first, second, words in (
        ("Complete", "Failed", "cannot set Complete=True and Failed=true conditions"),
        ("Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"),
        ("SuccessCriteriaMet", "Failed", "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
    ):
        if {first, second} <= true:
            errors.append(bad_value("status.conditions", OMIT, words))
    if status.get("completionTime") is not None and "Complete" not in true:
        words = "cannot set completionTime when there is no Complete=True condition"
        errors.append(bad_value("status.completionTime", status["completionTime"], words))
    if status.get("completionTime") is None and "Complete" in true:
        errors.append(required("status.completionTime", "completionTime is required for Complete jobs"))
    if status.get("active", 0) > 0 and finished:
        errors.append(bad_value("status.active", status["active"], "active>0 is invalid for finished job"))
    if status.get("startTime") is None and finished:
        errors.append(required("status.startTime", "startTime is required for finished job"))


def cron_job(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a CronJob."""
    meta = obj["metadata"]
    if old is None:
        metadata(errors, meta, namespaced=True, rule=texts.subdomain)
    else:
        metadata_update(errors, meta, old["metadata"])
    finalizer_names(errors, meta)
    if subresource == "status":
        return
    _cron_spec(errors, obj["spec"])
    if old is None and len(meta.get("name", "")) > 52:
        errors.append(bad_value("metadata.name", meta["name"], "must be no more than 52 characters"))


def _cron_spec(errors: Errors, spec: Object) -> None:
    when = spec.get("schedule", "")
    if not when:
        errors.append(required("spec.schedule"))
    else:
        wrong = schedule_error(when)
        if wrong:
            errors.append(bad_value("spec.schedule", when, wrong))
        if "TZ" in when:
            words = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            errors.append(bad_value("spec.schedule", when, words))
    not_negative(errors, "spec.startingDeadlineSeconds", spec.get("startingDeadlineSeconds"))
    _time_zone(errors, "spec.timeZone", spec.get("timeZone"))
    policies = ("Allow", "Forbid", "Replace")
    one_of(errors, "spec.concurrencyPolicy", spec.get("concurrencyPolicy", ""), policies, order=True)
    inner = (spec.get("jobTemplate") or {}).get("spec") or {}
    _spec(errors, "spec.jobTemplate.spec", inner)
    if inner.get("selector") is not None:
        at = "spec.jobTemplate.spec.selector"
        errors.append(bad_value(at, inner["selector"], "`selector` will be auto-generated"))
    if inner.get("manualSelector"):
        errors.append(not_supported("spec.jobTemplate.spec.manualSelector", True, ("nil", "false")))
    for name in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        not_negative(errors, f"spec.{name}", spec.get(name))


def _time_zone(errors: Errors, path: str, zone: str | None) -> None:
    if zone is None:
        return
    if not zone:
        errors.append(bad_value(path, zone, "timeZone must be nil or non-empty string"))
        return
    if zone.lower() == "local":
        words = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        errors.append(bad_value(path, zone, words))
    try:
        time_zone(zone)
    except ValueError:
        errors.append(bad_value(path, zone, f"unknown time zone {zone}"))


CHECKS: Final = {("batch", "jobs"): job, ("batch", "cronjobs"): cron_job}
