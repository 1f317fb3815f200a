"""Whatever a request's head has, nobody is let in by it without a token that the API server takes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kgpu.base.http import Request
from kgpu.overview.reviews import FakeReviews, Person
from kgpu.overview.sign_in import COOKIE, MOST_PEOPLE, PersonRights, TokenAccess
from tests.budget import tries

NAMES = ("authorization", "cookie", "host", "origin", "sec-fetch-site", "x-forwarded-user", "x-forwarded-proto",
         "x-remote-user", "impersonate-user", "last-event-id")  # fmt: skip
LINE = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=60)
WORDS = st.sampled_from([
    "Bearer x", "bearer", "Basic YTpi", f"{COOKIE}=x", f'{COOKIE}="', f"{COOKIE}=x; {COOKIE}=y", "http://[", "same-origin",
    "null", "https", "admin", "a; $Path=/; =", "Bearer tok en",
])  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(NAMES), st.one_of(LINE, WORDS), max_size=5)
PATHS = st.sampled_from(["/", "/live", "/list", "/lab", "//", "/sign-in/", "/SIGN-IN", "/../sign-in", "/style.css/.."])


@tries(300)
@given(headers=HEADERS, path=PATHS, method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "X"]), query=LINE)
@example(headers={"origin": "http://[", "host": "h"}, path="/", method="POST", query="")
async def test_no_head_lets_anybody_in(headers, path, method, query) -> None:
    access = TokenAccess(FakeReviews(people={"good": Person(name="ann")}))
    refused = await access.refuse(Request(method, path, headers, query=query))
    assert refused is not None
    assert refused.status in {401, 403}
    assert not any(name == "Set-Cookie" for name, _ in refused.headers)


async def test_what_is_remembered_of_people_is_bounded() -> None:
    access = TokenAccess(FakeReviews())
    first = access.rights_of(Person(name="0"))
    assert access.rights_of(Person(name="0")) is first
    for number in range(1, MOST_PEOPLE + 1):
        access.rights_of(Person(name=str(number)))
    assert access.rights_of(Person(name="0")) is not first


async def test_what_somebody_may_see_is_asked_for_him() -> None:
    reviews = FakeReviews(sees={"ann": {"ml"}, "root": {"", "nodes"}})
    assert await PersonRights(Person(name="ann"), reviews).now({"ml", "web"}) == (frozenset({"ml"}), False)
    assert await PersonRights(Person(name="root"), reviews).now({"ml"}) == (None, True)
    assert sorted(reviews.asked)[:4] == ["ann ", "ann ml", "ann nodes", "ann web"]


async def test_people_of_one_name_in_other_groups_are_others() -> None:
    access = TokenAccess(FakeReviews())
    assert access.rights_of(Person(name="ann")) is not access.rights_of(Person(name="ann", groups=("admins",)))
