"""Whom a request is to be made as: the headers that ``kubectl --as`` sends, and what its sender must be allowed. Pure.

Several values of a header come joined by commas, as HTTP has them; none of these values has a comma of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from kgpu.lab.embedded.core.model import ApiUser
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import bad_request

_EXTRA: Final = "impersonate-extra-"
_GROUP: Final = "authentication.k8s.io"
_ACCOUNT: Final = "system:serviceaccount:"
ANONYMOUS_NAME: Final = "system:anonymous"


def impersonated(request: ApiRequest) -> ApiUser | None:
    """The user that the headers name, None without one. Raises ApiError 400 for headers about a user without its
    name.
    """
    name, uid = request.header("impersonate-user"), request.header("impersonate-uid")
    groups, extra = _values(request.header("impersonate-group")), _extra(request.headers)
    if not name:
        if parts := list(_told(groups, extra, uid)):
            raise bad_request(f"requested [{' '.join(parts)}] without impersonating a user")
        return None
    if account := _account(name):
        groups = groups or ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
    known = () if name == ANONYMOUS_NAME else ("system:authenticated",)
    return ApiUser(name, tuple(dict.fromkeys((*groups, *known))), uid, extra)


def rights(request: ApiRequest) -> Iterator[dict[str, Any]]:
    """What the sender must be allowed for it, as attributes of an authorization."""
    name = request.header("impersonate-user")
    if account := _account(name):
        yield _right(resource="serviceaccounts", name=account[1], namespace=account[0])
    else:
        yield _right(resource="users", name=name)
    for group in _values(request.header("impersonate-group")):
        yield _right(resource="groups", name=group)
    for key, values in _extra(request.headers).items():
        for value in values:
            yield _right(group=_GROUP, version="v1", resource="userextras", subresource=key, name=value)
    if uid := request.header("impersonate-uid"):
        yield _right(group=_GROUP, version="v1", resource="uids", name=uid)


def _right(**attributes: str) -> dict[str, Any]:
    return {"verb": "impersonate", **attributes}


def _account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that a user's name is of."""
    namespace, colon, account = name.removeprefix(_ACCOUNT).partition(":")
    return (namespace, account) if name.startswith(_ACCOUNT) and colon and ":" not in account else None


def _extra(headers: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {
        unquote(header.removeprefix(_EXTRA)): _values(text)
        for header, text in sorted(headers.items())
        if header.startswith(_EXTRA)
    }


def _values(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (value.strip() for value in text.split(","))))


def _told(groups: tuple[str, ...], extra: Mapping[str, tuple[str, ...]], uid: str) -> Iterator[str]:
    yield from (f"{{Group  {group}    }}" for group in groups)
    yield from (f"{{UserExtra  {value} {_GROUP}/v1  {key} }}" for key, values in extra.items() for value in values)
    if uid:
        yield f"{{UID  {uid} {_GROUP}/v1   }}"
