"""What the API server is asked of other people, and what any odd answer of it gives: nothing."""

from __future__ import annotations

import asyncio

import pytest

from kgpu.base.errors import KubeError
from kgpu.overview import reviews
from kgpu.overview.reviews import ApiReviews, Person


class Api:
    """Answers reviews with a status."""

    def __init__(self, status: object) -> None:
        self.status = status
        self.sent: list[dict] = []

    async def create(self, resource, obj):
        self.sent.append({"resource": resource.plural, **obj["spec"]})
        if isinstance(self.status, Exception):
            raise self.status
        return {**obj, "status": self.status}


USER = {"username": "ann", "uid": "7", "groups": ["a", "b"], "extra": {"scopes": ["x"]}}
ANN = Person(name="ann", uid="7", groups=("a", "b"), extra=(("scopes", ("x",)),))


async def test_whose_a_token_is_and_what_he_may_see_is_asked_with_all_that_is_known_of_him() -> None:
    api = Api({"authenticated": True, "user": USER})
    assert await ApiReviews(api).who("t") == ANN
    assert api.sent == [{"resource": "tokenreviews", "token": "t"}], "for the API server alone: no audience is named"
    api = Api({"allowed": True})
    person = {"user": "ann", "uid": "7", "groups": ["a", "b"], "extra": {"scopes": ["x"]}}
    assert await ApiReviews(api).may_see(ANN, "ml")
    assert await ApiReviews(api).may_see(ANN, "")
    assert await ApiReviews(api).may_list_nodes(ANN)
    of_ml, of_all = {"verb": "get", "resource": "pods", "namespace": "ml"}, {"verb": "get", "resource": "pods"}
    attributes = (of_ml, {**of_ml, "subresource": "log"}, of_all, {**of_all, "subresource": "log"},
                  {"verb": "list", "resource": "nodes"})  # fmt: skip
    assert api.sent == [{"resource": "subjectaccessreviews", **person, "resourceAttributes": one} for one in attributes]


@pytest.mark.parametrize(
    "status",
    [
        None, {}, [], {"authenticated": False, "user": USER}, {"authenticated": "true", "user": USER},
        {"authenticated": True}, {"authenticated": True, "user": {"username": ""}},
        {"authenticated": True, "user": {"username": 7}}, {"authenticated": True, "user": []},
    ],
)  # fmt: skip
async def test_an_odd_answer_lets_nobody_in(status) -> None:
    assert await ApiReviews(Api(status)).who("t") is None


async def test_odd_groups_are_none() -> None:
    user = {"username": "ann", "groups": ["a", 7, None], "extra": {"k": "v", "l": ["m", 3]}, "uid": 3}
    found = await ApiReviews(Api({"authenticated": True, "user": user})).who("t")
    assert found == Person(name="ann", groups=("a",), extra=(("k", ()), ("l", ("m",))))


@pytest.mark.parametrize(
    "status", [None, {}, {"allowed": False}, {"allowed": "yes"}, {"allowed": True, "denied": True}]
)
async def test_an_odd_answer_gives_no_right(status) -> None:
    assert not await ApiReviews(Api(status)).may_see(ANN, "ml")


async def test_who_may_not_read_logs_is_shown_no_pods_of_which_the_doctor_quotes_them() -> None:
    class WithoutLogs(Api):
        async def create(self, resource, obj):
            about = obj["spec"]["resourceAttributes"]
            return {"status": {"allowed": about.get("subresource") != "log"}}

    assert not await ApiReviews(WithoutLogs(None)).may_see(ANN, "ml")


async def test_an_answer_that_does_not_come_is_an_error_without_the_token(monkeypatch) -> None:
    class Silent:
        async def create(self, resource, obj):
            await asyncio.Event().wait()

    monkeypatch.setattr(reviews, "DEADLINE", 0.0)
    with pytest.raises(KubeError) as caught:
        await ApiReviews(Silent()).who("very-secret")
    assert "secret" not in str(caught.value)
