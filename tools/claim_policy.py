"""The admission policy that checks the opaque parameters of claims when they are written, made of the rows of
``kgpu.formats.dra_parameters``: what a node would refuse when it prepares a claim is refused here, field by field in
the same order, each with a text in three parts.

A variable of the policy is a list of entries ``{'at': its place, 'of': its value}``: the values of one field in all
parameters that are written. What only a node can say stays there: whether the claim has the device that a limit of
memory names, and what a word was probably meant to be.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kgpu.formats.dra_parameters import (
    DRIVER_PARAMETERS,
    STRATEGY,
    ByDevice,
    DriverParameters,
    KnownWord,
    MemoryLimit,
    ParameterField,
    ParameterRule,
    ParameterTree,
    WholeNumber,
)
from kgpu.formats.names import CLAIM_PARAMETERS_POLICY, DRA_AMD_DRIVER, DRA_GAUDI_DRIVER, DRA_GPU_DRIVER

MOST_CONFIGS: Final = 32  # the API's limit of a claim and of a class
WIDTH: Final = 110
_PLAIN: Final = "'^[!-~]{1,60}$'"  # what of a foreign text can be shown on one line
_RESOURCES: Final = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
_VALUE: Final = "e.of"
_WORDS: Final = {DRA_GPU_DRIVER: "", DRA_AMD_DRIVER: "Amd", DRA_GAUDI_DRIVER: "Gaudi"}
"""What the names of the variables about a driver end with."""


def quoted(text: str) -> str:
    """A CEL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _listed(words: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, words))}]"


def _text(name: str) -> str:
    """CEL for a foreign text in a message."""
    return f"({name}.matches({_PLAIN}) ? {name} : 'that can not be shown')"


def _shown(name: str) -> str:
    """CEL for a foreign value in a message."""
    return f"(type({name}) == string ? {_text(name)} : type({name}) == int ? string({name}) : 'this value')"


def _said(path: str, what: str, expected: str, remedy: str = "") -> str:
    """CEL for a text in three parts about the entry ``e``; ``what`` is CEL, for it may have a value in it."""
    remedy = remedy or f"correct {path or 'the parameters'}"
    return f"e.at + ': ' + {what} + {quoted(f'; expected {expected}; to do: {remedy}')}"


@dataclass(frozen=True, slots=True)
class ParametersPolicy:
    """``variables`` of the policy by name, and the names of those that list what is wrong, in the order of reading."""

    variables: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def refuse(self, name: str, of: str, when: str, said: str) -> None:
        """Of the entries ``of`` those for which ``when`` holds are wrong."""
        self.variables[name] = f"variables.{of}.filter(e, {when}).map(e, {said})"
        self.wrong.append(name)

    def refuse_names(self, of: str, path: str, known: Sequence[str], kind: str = "") -> None:
        """Fields that the objects ``of`` must not have; of several in one object one is told."""
        name, when = f"unknownIn{of[0].upper()}{of[1:]}", f"type({_VALUE}) == map"
        if kind:
            name, when = f"{name}Of{kind}", f"e.kind == {quoted(kind)} && {when}"
        others = f"{_VALUE}.filter(k, !(k in {_listed(known)}))"
        said = _said(path, f"'unknown field \"' + {others}.map(k, {_text('k')})[0] + '\"'", ", ".join(known))
        self.refuse(name, of, f"{when} && {others}.size() > 0", said)

    def refuse_values(self, name: str, path: str, unless: str, wrong: str, expected: str) -> None:
        what = f"{_shown(_VALUE)} + {quoted(' ' + wrong)}"
        self.refuse(f"wrong{name[0].upper()}{name[1:]}", name, f"!({unless})", _said(path, what, expected))

    def have(self, row: ParameterField, tree: str, path: str) -> None:
        """A field of the objects ``tree``."""
        value = f"{_VALUE}.?{row.name}.orValue(null)"
        there = "" if row.required else f" && {value} != null"
        entry = f"{{'at': dyn(e.at + '.{row.name}'), 'of': {value}, 'strategy': {_VALUE}.?{STRATEGY}.orValue(null)}}"
        self.variables[row.name] = f"variables.{tree}.filter(e, type({_VALUE}) == map{there}).map(e, {entry})"
        if row.strategy:
            what = f"'it has no effect with the strategy ' + {_shown('e.strategy')}"
            said = _said(path, what, "one kind of sharing")
            self.refuse(f"{row.name}Alone", row.name, f"e.strategy != {quoted(row.strategy)}", said)
        self.check(row.rule, row.name, path)

    def check(self, rule: ParameterRule, name: str, path: str) -> None:
        match rule:
            case KnownWord():
                self.words(rule, name, path)
            case WholeNumber():
                good = f"type({_VALUE}) == int && {_VALUE} >= {rule.low} && {_VALUE} <= {rule.high}"
                self.refuse_values(name, path, good, rule.wrong, f"{rule.low} to {rule.high}")
            case MemoryLimit():
                self.refuse_values(name, path, _enough(rule, _VALUE), rule.wrong, rule.expected)
            case ByDevice():
                self.objects(name, path, rule.expected)
                few = f"{_VALUE}.filter(k, !({_enough(rule.rule, f'{_VALUE}[k]')}))"
                what = f"{few}.map(k, {_text('k')})[0] + {quoted(f': its value {rule.rule.wrong}')}"
                when = f"type({_VALUE}) == map && {few}.size() > 0"
                self.refuse(f"{name}Limits", name, when, _said(path, what, rule.rule.expected))
            case ParameterTree():
                self.objects(name, path, rule.expected)
                self.refuse_names(name, path, rule.names)
                for row in rule.fields:
                    self.have(row, name, f"{path}.{row.name}")

    def objects(self, name: str, path: str, expected: str) -> None:
        self.refuse_values(name, path, f"type({_VALUE}) == map", "is not an object", expected)

    def words(self, rule: KnownWord, name: str, path: str) -> None:
        expected = (" or " if len(rule.words) == 2 else ", ").join(rule.words)
        said = _said(path, f"{quoted(rule.wrong + ' ')} + {_shown(_VALUE)}", expected)
        self.refuse(f"wrong{name[0].upper()}{name[1:]}", name, f"!({_VALUE} in {_listed(rule.words)})", said)
        for word, gate in rule.gates.items():
            remedy = f"have the administrator switch it on ({gate}=true), or remove the configuration"
            said = _said(path, quoted(f"{word} is not enabled"), f"the feature gate {gate}", remedy)
            when = f"{_VALUE} == {quoted(word)} && !({quoted(gate)} in variables.gates)"
            self.refuse(f"without{gate}", name, when, said)


def _enough(rule: MemoryLimit, value: str) -> str:
    text = f"isQuantity({value}.trim()) && quantity({value}.trim()).compareTo(quantity('{rule.least}')) >= 0"
    number = f"(type({value}) == int || type({value}) == double) && {value} >= {rule.least}"
    return f"type({value}) == string ? {text} : {number}"


def policy() -> ParametersPolicy:
    """The checks of ``entries``, which are those that are written, driver by driver."""
    made = ParametersPolicy()
    for driver, known in DRIVER_PARAMETERS.items():
        word = _WORDS[driver]
        made.variables[f"parameters{word}"] = f"variables.entries.filter(e, e.driver == {quoted(driver)})"
        if known.kinds:
            _check(made, known, word)
        else:
            said = _said("", quoted("the driver takes no parameters"), "none", f"remove the entry for {driver}")
            made.refuse(f"none{word}", f"parameters{word}", "true", said)
    return made


def _check(made: ParametersPolicy, known: DriverParameters, word: str) -> None:
    """The checks of one driver's."""
    parameters = f"parameters{word}"
    version, kind = (f"{_VALUE}.?{name}.orValue(null)" for name in ("apiVersion", "kind"))
    said = f"e.at + '.apiVersion: unknown version ' + {_shown(version)} + "
    said += quoted(f"; expected {known.version}; to do: correct apiVersion")
    made.refuse(f"wrongVersion{word}", parameters, f"{version} != {quoted(known.version)}", said)
    other = quoted("correct kind")
    if known.elsewhere:
        elsewhere = ", ".join(f"{quoted(name)}: {quoted(why)}" for name, why in known.elsewhere.items())
        made.variables[f"elsewhere{word}"] = f"{{{elsewhere}}}"
        other = f"({kind} in {_listed(known.elsewhere)} ? variables.elsewhere{word}[{kind}] : {other})"
    expected = quoted(f"; expected {' or '.join(known.kinds)}; to do: ")
    said = f"e.at + '.kind: unknown kind ' + {_shown(kind)} + {expected} + {other}"
    made.refuse(f"wrongKind{word}", parameters, f"!({kind} in {_listed(known.kinds)})", said)
    made.refuse_names(parameters, "", known.fields)
    sharing = {name: row.sharing for name, row in known.kinds.items() if row.sharing is not None}
    if sharing:
        _check_sharing(made, sharing, parameters)


def _check_sharing(made: ParametersPolicy, sharing: Mapping[str, ParameterTree], parameters: str) -> None:
    """The checks of how devices are to be shared, by kind."""
    inside, kind = f"{_VALUE}.?sharing.orValue(null)", f"{_VALUE}.?kind.orValue(null)"
    entry = f"{{'at': dyn(e.at + '.sharing'), 'of': {inside}, 'kind': {kind}}}"
    made.variables["sharing"] = f"variables.{parameters}.filter(e, {inside} != null).map(e, {entry})"
    made.objects("sharing", "sharing", next(iter(sharing.values())).expected)
    for name, tree in sharing.items():
        made.refuse_names("sharing", "sharing", tree.names, name)
    for one in dict.fromkeys(one for tree in sharing.values() for one in tree.fields):
        made.have(one, "sharing", f"sharing.{one.name}")


def _configs(of: str) -> str:
    """Where the entries are: of a claim, of a template, of a class."""
    return f"{of}.?spec.?devices.?config.or({of}.?spec.?spec.?devices.?config).or({of}.?spec.?config).orValue([])"


TEMPLATE: Final = """\
{{- /* Made by tools/claim_policy.py (python tools/chart.py) of the rows by which nodes read parameters of claims: what
a node would refuse when a pod is there already is refused when the claim, its template or the class is written. What
stands stays, whatever the rules have become: only entries that change are looked at, so all can be given back. */ -}}
{{- if and .Values.dra.enabled .Values.dra.webhook.enabled .Values.admissionPolicy.enabled
  (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version)
  (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") }}
{{- $gates := list }}
{{- range $gate, $on := .Values.dra.featureGates }}
{{- if $on }}
{{- $gates = append $gates $gate }}
{{- end }}
{{- end }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: @NAME
  labels:
    {{- include "kgpu.labels" . | nindent 4 }}
spec:
  failurePolicy: {{ .Values.dra.webhook.failurePolicy }}
  matchConstraints:
    matchPolicy: Equivalent
    resourceRules:
      - apiGroups: [resource.k8s.io]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [@RESOURCES]
  matchConditions:
    - name: for-these-drivers
      expression: >-
        @OBJECT
        .exists(c, c.?opaque.?driver.orValue('') in @DRIVERS)
    - name: new-or-changed
      expression: >-
        request.operation == 'CREATE' ||
        @OBJECT !=
        @OLD
  variables:
    # The feature gates that are on.
    - name: gates
      expression: {{ toJson (toJson $gates) }}
    - name: configs
      expression: >-
        @OBJECT
    - name: place
      expression: >-
        request.resource.resource == 'resourceclaims' ? 'spec.devices.config' :
        request.resource.resource == 'resourceclaimtemplates' ? 'spec.spec.devices.config' : 'spec.config'
    # The positions of entries for these drivers.
    - name: positions
      expression: >-
        [@POSITIONS].filter(i,
        i < variables.configs.size() && variables.configs[i].?opaque.?driver.orValue('') in @DRIVERS)
    - name: entries
      expression: >-
        variables.positions.map(i, {'at': dyn(variables.place + '[' + string(i) + '].opaque.parameters'),
        'of': dyn(variables.configs[i].opaque.parameters), 'driver': dyn(variables.configs[i].opaque.driver)})
    # The values of each field, and what is wrong with them, as texts.
@VARIABLES
  validations:
@VALIDATIONS
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: @NAME
  labels:
    {{- include "kgpu.labels" . | nindent 4 }}
spec:
  policyName: @NAME
  validationActions: [Deny]
{{- end }}
"""


VALIDATION: Final = """\
    - expression: variables.@WRONG.size() == 0
      messageExpression: variables.@WRONG[0]
      message: >-
        parameters for a GPU are wrong; expected those that its driver knows; to do: correct them
"""


def _variable(name: str, text: str) -> str:
    """A folded text: CEL has spaces only where lines may break, but for literals, which stay whole."""
    lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"    - name: {name}\n      expression: >-\n{textwrap.indent(chr(10).join(lines), ' ' * 8)}\n"


def template() -> str:
    """The chart's template."""
    made = policy()
    filled = {
        "@NAME": CLAIM_PARAMETERS_POLICY,
        "@RESOURCES": ", ".join(_RESOURCES),
        "@OBJECT": _configs("object"),
        "@OLD": _configs("oldObject"),
        "@DRIVERS": _listed(DRIVER_PARAMETERS),
        "@POSITIONS": ", ".join(map(str, range(MOST_CONFIGS))),
        "@VARIABLES": "".join(_variable(name, text) for name, text in made.variables.items()).rstrip("\n"),
        "@VALIDATIONS": "".join(VALIDATION.replace("@WRONG", name) for name in made.wrong).rstrip("\n"),
    }
    text = TEMPLATE
    for mark, value in filled.items():
        text = text.replace(mark, value)
    return text
