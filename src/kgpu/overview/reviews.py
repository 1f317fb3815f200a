"""What the API server says of other people: whose a token is, and what somebody may see. ``FakeReviews`` is for tests.

A token is in the request's body alone. It is in no error and no log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kgpu.base.errors import KubeError, UserError
from kgpu.base.plain import mapping
from kgpu.kube.kinds import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from kgpu.kube.port import Object, Resource

DEADLINE: Final = 10.0  # seconds for an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody as the API server knows him."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Reviews(Protocol):
    """What is asked. Every method raises UserError when it can't be said."""

    async def who(self, token: str) -> Person | None:
        """Whose the token is now, None for nobody's."""
        ...

    async def may_see(self, person: Person, namespace: str) -> bool:
        """Whether somebody may get the pods of a namespace and their logs, which the doctor quotes; "" for all."""
        ...

    async def may_list_nodes(self, person: Person) -> bool:
        """Whether somebody may list nodes."""
        ...


class CreatesObjects(Protocol):
    """The call of an API server that this module uses."""

    async def create(self, resource: Resource, obj: Object) -> Object:
        """Create an object; a review comes back with its status."""
        ...


class ApiReviews:
    """``Reviews`` by TokenReviews and SubjectAccessReviews."""

    def __init__(self, api: CreatesObjects) -> None:
        self._api = api

    async def who(self, token: str) -> Person | None:
        # Without audiences: a token that is for another program than the API server is nobody's here.
        status = await self._ask(TOKEN_REVIEWS, {"token": token}, "whose a token is")
        user = mapping(status.get("user"))
        name = user.get("username")
        if status.get("authenticated") is not True or not isinstance(name, str) or not name:
            return None
        extra = {key: _texts(values) for key, values in mapping(user.get("extra")).items()}
        uid = user.get("uid")
        return Person(
            name=name, uid=uid if isinstance(uid, str) else "", groups=_texts(user.get("groups")),
            extra=tuple(sorted(extra.items())),
        )  # fmt: skip

    async def may_see(self, person: Person, namespace: str) -> bool:
        pods = {"verb": "get", "resource": "pods", **({"namespace": namespace} if namespace else {})}
        return await self._may(person, **pods) and await self._may(person, **pods, subresource="log")

    async def may_list_nodes(self, person: Person) -> bool:
        return await self._may(person, verb="list", resource="nodes")

    async def _may(self, person: Person, **attributes: str) -> bool:
        spec = {
            "user": person.name, "uid": person.uid, "groups": list(person.groups),
            "extra": {key: list(values) for key, values in person.extra}, "resourceAttributes": attributes,
        }  # fmt: skip
        status = await self._ask(SUBJECT_ACCESS_REVIEWS, spec, "what somebody may see")
        return status.get("allowed") is True and status.get("denied") is not True

    async def _ask(self, resource: Resource, spec: Mapping[str, Any], what: str) -> Mapping[str, Any]:
        review = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}, "spec": dict(spec)}
        try:
            async with asyncio.timeout(DEADLINE):
                return mapping((await self._api.create(resource, review)).get("status"))
        except TimeoutError as error:
            raise KubeError(
                f"the API server did not say within {DEADLINE:.0f} s {what}", "its answer", "try again later"
            ) from error


def _texts(found: object) -> tuple[str, ...]:
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()


@dataclass(slots=True)
class FakeReviews:
    """Reviews that a test sets: people by token, and by name what they may see, ``nodes`` among it. While ``slow`` is
    not set nothing is answered, and never what is asked of ``slow_about``.
    """

    people: dict[str, Person] = field(default_factory=dict)
    sees: dict[str, set[str]] = field(default_factory=dict)
    trouble: UserError | None = None
    slow: asyncio.Event | None = None
    slow_about: str = ""
    asked: list[str] = field(default_factory=list)

    async def who(self, token: str) -> Person | None:
        await self._say("who")
        return self.people.get(token)

    async def may_see(self, person: Person, namespace: str) -> bool:
        await self._say(f"{person.name} {namespace}")
        return namespace in self._of(person)

    async def may_list_nodes(self, person: Person) -> bool:
        await self._say(f"{person.name} nodes")
        return "nodes" in self._of(person)

    def _of(self, person: Person) -> Iterable[str]:
        return self.sees.get(person.name, ())

    async def _say(self, what: str) -> None:
        self.asked.append(what)
        if self.slow is not None:
            await self.slow.wait()
        if self.slow_about and what.startswith(self.slow_about):
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble
