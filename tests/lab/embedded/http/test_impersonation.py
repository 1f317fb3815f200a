"""Whom ``kubectl --as`` asks to be: name, groups, uid and further data, each with its right."""

from __future__ import annotations

import pytest

from kgpu.lab.embedded.http import request as requests
from kgpu.lab.embedded.http.impersonation import impersonated, rights
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import ApiError
from tests.lab.embedded.served import Server

NODE_NAME = "Impersonate-Extra-authentication.kubernetes.io%2fnode-name"
DRIVER = "system:serviceaccount:team:driver"


def asked(*headers: tuple[str, str]) -> ApiRequest:
    return requests.parse("GET", "/api", "", [(name.lower().encode(), value.encode()) for name, value in headers])


def test_all_that_the_headers_say_counts() -> None:
    found = impersonated(asked(
        ("Impersonate-User", "joe"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"), ("Impersonate-Uid", "u1"),
        ("Impersonate-Extra-Scopes", "x"), ("Impersonate-Extra-Scopes", "y"), (NODE_NAME, "n1"),
    ))  # fmt: skip
    assert found is not None
    assert (found.name, found.uid, found.groups) == ("joe", "u1", ("a", "b", "system:authenticated"))
    assert found.extra == {"authentication.kubernetes.io/node-name": ("n1",), "scopes": ("x", "y")}


def test_each_part_takes_a_right() -> None:
    found = list(rights(asked(
        ("Impersonate-User", DRIVER), ("Impersonate-Group", "a"), (NODE_NAME, "n1"), ("Impersonate-Uid", "u1"),
    )))  # fmt: skip
    group = {"verb": "impersonate", "group": "authentication.k8s.io", "version": "v1"}
    assert found == [
        {"verb": "impersonate", "resource": "serviceaccounts", "name": "driver", "namespace": "team"},
        {"verb": "impersonate", "resource": "groups", "name": "a"},
        {**group, "resource": "userextras", "subresource": "authentication.kubernetes.io/node-name", "name": "n1"},
        {**group, "resource": "uids", "name": "u1"},
    ]


def test_a_service_account_is_in_its_groups_and_nobody_is_known_by_being_anonymous() -> None:
    account, nobody = (impersonated(asked(("Impersonate-User", name))) for name in (DRIVER, "system:anonymous"))
    assert account is not None
    assert account.groups == ("system:serviceaccounts", "system:serviceaccounts:team", "system:authenticated")
    assert nobody is not None
    assert nobody.groups == ()
    assert impersonated(asked()) is None


@pytest.mark.parametrize("header", ["Impersonate-Group", "Impersonate-Uid", NODE_NAME])
def test_data_without_a_user_is_refused(header: str) -> None:
    with pytest.raises(ApiError, match="without impersonating a user"):
        impersonated(asked((header, "x")))


def test_the_server_takes_it_for_true(server: Server) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    headers = {NODE_NAME: "n1", "Impersonate-Uid": "u1", "Impersonate-User": "joe"}
    found = server.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, **headers)
    assert found.value["status"]["userInfo"] == {
        "username": "joe", "uid": "u1", "groups": ["system:authenticated"],
        "extra": {"authentication.kubernetes.io/node-name": ["n1"]},
    }  # fmt: skip
