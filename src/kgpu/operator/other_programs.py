"""Which Deployments really are another GPU operator or node feature discovery.

Any tenant can give a Deployment of its own such a name or label, so that proves nothing. What a tenant can't have is
the right without which such a program can't work: to write the status of ClusterPolicies, to patch Nodes. The API
server is asked whether the account of the Deployment's pods has it. The oldest are asked about first, and a few of each
namespace, so that nobody hides the real one behind a crowd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.clock import Clock
from kgpu.base.plain import mapping
from kgpu.formats import names
from kgpu.kube.kinds import SUBJECT_ACCESS_REVIEWS
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, name_of, namespace_of
from kgpu.operator.model import OtherProgram

AGAIN: Final = 60.0  # seconds until an answer is asked for again: bindings come and go
MOST: Final = 100  # Deployments that are asked about
MOST_OF_NAMESPACE: Final = 10
MISSING_RIGHT: Final = "MissingRight"


# Labels under which each is deployed, by chart or by manifest.
LABELS: Final[Mapping[OtherProgram, tuple[tuple[str, str], ...]]] = {
    OtherProgram.OPERATOR: (
        ("app", names.GPU_OPERATOR_NAMESPACE),
        (names.COMPONENT_LABEL, names.GPU_OPERATOR_NAMESPACE),
    ),
    OtherProgram.DISCOVERY: ((names.NAME_LABEL, "node-feature-discovery"), ("app", "nfd-master"), ("app", "nfd")),
}
# What each can't work without. NVIDIA's operator writes clusterpolicies/status; nfd-master patches Nodes.
RIGHTS: Final[Mapping[OtherProgram, Object]] = {
    OtherProgram.OPERATOR: {
        "verb": "update", "group": names.NVIDIA_DOMAIN, "resource": "clusterpolicies", "subresource": "status",
    },
    OtherProgram.DISCOVERY: {"verb": "patch", "resource": "nodes"},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SuspectProgram:
    """A Deployment that runs and looks like another program. ``account`` is its pods' service account; ``made`` is its
    creationTimestamp, ``version`` the release that it says it is.
    """

    made: str
    namespace: str
    name: str
    account: str
    program: OtherProgram
    version: str = ""

    @property
    def question(self) -> tuple[OtherProgram, str, str]:
        """The key of the access review: two Deployments with the same account get the same answer."""
        return self.program, self.namespace, self.account


def suspect(program: OtherProgram, deployment: Object, own_uid: str) -> SuspectProgram | None:
    """Return a Deployment with one of the program's labels as a suspect. ``deployment`` is reduced by ``projections``.

    None for one that does not run, is kgpu's own, or is another part of the program.
    """
    metadata, labels = deployment["metadata"], deployment["labels"]
    ours = metadata.get("uid") == own_uid or names.KGPU in (
        labels.get(names.PART_OF_LABEL), labels.get(names.NAME_LABEL)
    )  # fmt: skip
    other_part = program is OtherProgram.DISCOVERY and not _is_master(deployment)
    if not deployment["runs"] or ours or other_part:
        return None
    return SuspectProgram(
        made=deployment["made"],
        namespace=namespace_of(deployment),
        name=name_of(deployment),
        account=deployment["account"],
        program=program,
        version=labels.get(names.VERSION_LABEL, ""),
    )


def _is_master(deployment: Object) -> bool:
    return "master" in name_of(deployment) or deployment["labels"].get("role") == "master"


def to_ask(suspects: Iterable[SuspectProgram]) -> tuple[SuspectProgram, ...]:
    """The suspects to ask about, oldest first: at most ``MOST_OF_NAMESPACE`` of a namespace and ``MOST`` in all."""
    counts: Counter[str] = Counter()
    chosen: list[SuspectProgram] = []
    for candidate in sorted(suspects):
        if counts[candidate.namespace] < MOST_OF_NAMESPACE and len(chosen) < MOST:
            counts[candidate.namespace] += 1
            chosen.append(candidate)
    return tuple(chosen)


class OtherPrograms:
    """Asks the API server what suspects may do, and keeps the answers for a minute."""

    def __init__(self, api: KubeApi, *, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._answers: dict[tuple[OtherProgram, str, str], tuple[bool, float]] = {}
        self._refused: dict[OtherProgram, KubeRefusedError] = {}
        self._left_out = 0
        self.again_at: float | None = None
        """When the oldest answer expires, by the clock; None while there are no suspects."""

    async def confirmed(self, suspects: Iterable[SuspectProgram]) -> frozenset[SuspectProgram]:
        """Return the suspects whose account has the right that such a program needs.

        Raises KubeError when the API server does not answer. Where the operator may not ask, no suspect is confirmed,
        and ``advice`` says so.
        """
        suspects = tuple(suspects)
        checked = to_ask(suspects)
        self._left_out = len(suspects) - len(checked)
        now = self._clock.monotonic()
        questions = dict.fromkeys(suspect.question for suspect in checked)
        self._answers = {key: self._answers[key] for key in questions if key in self._answers}
        self._refused = {
            key: error for key, error in self._refused.items() if any(key == question[0] for question in questions)
        }
        for question in questions:
            known = self._answers.get(question)
            if known is None or now - known[1] >= AGAIN:
                self._answers[question] = await self._ask(question), now
        self.again_at = min((at + AGAIN for _, at in self._answers.values()), default=None)
        return frozenset(suspect for suspect in checked if self._answers[suspect.question][0])

    async def _ask(self, question: tuple[OtherProgram, str, str]) -> bool:
        program, namespace, account = question
        review: Object = {
            "metadata": {},
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
                "resourceAttributes": dict(RIGHTS[program]),
            },
        }
        try:
            answer = await self._api.create(SUBJECT_ACCESS_REVIEWS, review)
        except KubeRefusedError as error:
            if error.code not in (403, 404):
                raise
            self._refused[program] = error
            return False
        self._refused.pop(program, None)
        return mapping(answer.get("status")).get("allowed") is True

    def advice(self) -> tuple[Advice, ...]:
        """Warnings about suspects that could not be checked."""
        advice = [_unasked(program, error) for program, error in sorted(self._refused.items())]
        if self._left_out:
            advice.append(_crowd(self._left_out))
        return tuple(advice)


def _unasked(program: OtherProgram, error: KubeRefusedError) -> Advice:
    return Advice(
        subject="",
        what=f"a Deployment looks like another {program} and is not believed to be one",
        why=f"the operator may not ask what its service account may do: {error.what}",
        remedy="grant its own service account create of subjectaccessreviews.authorization.k8s.io, as the chart does",
        severity=Severity.WARNING,
        reason=MISSING_RIGHT,
    )


def _crowd(count: int) -> Advice:
    return Advice(
        subject="",
        what=f"{count} Deployments that look like another GPU operator or node feature discovery are not looked at",
        why=f"no more than {MOST} are, and {MOST_OF_NAMESPACE} of a namespace, the oldest first",
        remedy="see whose they are: kubectl get deployments -A -l 'app in (gpu-operator, nfd, nfd-master)'",
        severity=Severity.WARNING,
        reason="TooManySuspects",
    )
