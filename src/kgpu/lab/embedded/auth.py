"""Authentication by bearer tokens of people, nodes and service accounts, and authorization (``rbac``).

Static tokens are in a file of the API server's own format (``token,user,uid,"group,group"``), which is read again when
it changes. Service accounts have signed tokens (JWT, ES256), valid until they expire or their account or pod is gone.
Tokens are never logged.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import hashlib
import hmac
import json
import os
import secrets
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.lab.embedded.core.context import StoreLookup
from kgpu.lab.embedded.core.model import ApiUser
from kgpu.lab.embedded.rbac import Rbac
from kgpu.lab.embedded.status import ApiError, Object, bad_request, conflict, forbidden, not_found

if TYPE_CHECKING:
    from kgpu.lab.embedded.store import ObjectStore

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
ANONYMOUS: Final = ApiUser("system:anonymous", ("system:unauthenticated",))
AUTHENTICATED: Final = "system:authenticated"
LIFE_S: Final = 3600  # of a token whose request has no expirationSeconds
_KNOWN: Final = 4096  # verified tokens that are remembered
_SA_GROUP: Final = "system:serviceaccounts"
_EXTRA: Final = "authentication.kubernetes.io/"
_BOUND: Final = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """A row of the token file."""

    token: str
    user: str
    groups: tuple[str, ...] = ()


def new_token() -> str:
    """A new random token."""
    return secrets.token_urlsafe(32)


def write_tokens(path: Path, rows: Iterable[StaticToken]) -> None:
    """Write the token file, readable by its owner alone."""
    lines = [f'{row.token},{row.user},{row.user},"{",".join(row.groups)}"\n' for row in rows]
    write_atomic(path, "".join(lines), mode=0o600)


def read_tokens(path: Path) -> list[StaticToken]:
    """The token file's rows, none when there is no file. Raises LabError."""
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise _bad_tokens(path, str(error)) from error
    tokens = []
    for number, row in enumerate(rows, 1):
        if len(row) < 3 or not row[0] or not row[1]:
            raise _bad_tokens(path, f"row {number} has no token, user and uid")
        groups = tuple(filter(None, (group.strip() for group in row[3].split(",")))) if len(row) > 3 else ()
        tokens.append(StaticToken(token=row[0], user=row[1], groups=groups))
    return tokens


def _bad_tokens(path: Path, why: str) -> LabError:
    return LabError(f"{path}: {why}", 'rows of token,user,uid,"group,group"', "correct the file, or remove it")


class Auth:
    """``Authority`` and authenticator of one API server."""

    def __init__(self, store: ObjectStore, *, tokens: Path | None = None, key: Path | None = None) -> None:
        """``tokens`` is the static tokens' file; ``key`` the key that service account tokens are signed with."""
        self._reads = StoreLookup(store)
        self.rbac = Rbac(self._reads)
        store.on_commit(lambda kind, *_: self.rbac.changed(kind))
        self._path = tokens
        self._stamp: tuple[int, int] | None = None
        self._static: dict[str, ApiUser] = {}
        self._key_path = key
        self._key: Any = None
        self._claims: dict[str, Object] = {}
        self._load_static()

    # --- authentication -------------------------------------------------------------------------------------------

    def authenticate(self, authorization: str) -> ApiUser:
        """The user of an Authorization header; anonymous when it names none. Raises ApiError 401."""
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return ANONYMOUS
        user = self.review(token)
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def review(self, token: str) -> ApiUser | None:
        """The user of a token, None when it isn't valid (any more)."""
        user = self._static.get(token)
        if user is not None:
            return user
        if token.count(".") == 2:
            return self._account_user(token)
        # Only for an unknown token is the file checked for changes.
        self._load_static()
        return self._static.get(token)

    def _load_static(self) -> None:
        if self._path is None:
            return
        try:
            info = os.stat(self._path)
        except OSError:
            return
        stamp = info.st_mtime_ns, info.st_ino
        if stamp != self._stamp:
            rows = read_tokens(self._path)
            self._static = {row.token: ApiUser(row.user, (*row.groups, AUTHENTICATED), row.user) for row in rows}
            self._stamp = stamp

    # --- service account tokens -----------------------------------------------------------------------------------

    def issue(self, account: Object, spec: Object) -> tuple[str, str]:
        """(token, expirationTimestamp) for a TokenRequest's spec. Raises ApiError 400, 404 and 409."""
        metadata = account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        now = int(time.time())
        until = now + int(spec.get("expirationSeconds") or LIFE_S)
        private: Object = {
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": metadata["uid"]},
            **self._bound(spec.get("boundObjectRef") or {}, namespace, name),
        }
        claims = {
            "aud": list(spec.get("audiences") or ()) or [ISSUER],
            "exp": until,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": private,
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        expires = dt.datetime.fromtimestamp(until, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._signed(claims), expires

    def _bound(self, reference: Object, namespace: str, account: str) -> Object:
        kind, name = str(reference.get("kind") or ""), str(reference.get("name") or "")
        if not kind:
            return {}
        if kind not in _BOUND:
            raise bad_request(f"cannot bind token to object of type {reference.get('apiVersion')}, Kind={kind}")
        plural = _BOUND[kind]
        obj = self._reads.get("", plural, "" if kind == "Node" else namespace, name)
        if obj is None:
            raise not_found("", plural, name)
        uid = obj["metadata"]["uid"]
        if reference.get("uid") and reference["uid"] != uid:
            why = f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
            why += "The object might have been deleted and then recreated"
            raise conflict("", plural, name, why)
        binding: Object = {kind.lower(): {"name": name, "uid": uid}}
        if kind == "Pod":
            spec = obj.get("spec") or {}
            if (spec.get("serviceAccountName") or "default") != account:
                why = f'cannot bind token for serviceaccount "{account}" to pod'
                raise bad_request(f"{why} running with different serviceaccount name.")
            node = self._reads.get("", "nodes", "", str(spec.get("nodeName") or ""))
            if node is not None:
                binding["node"] = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
        return binding

    def _account_user(self, token: str) -> ApiUser | None:
        claims = self._claims.get(token)
        if claims is None:
            claims = self._verified(token)
            if claims is None:
                return None
            if len(self._claims) >= _KNOWN:
                self._claims.clear()
            self._claims[token] = claims
        now = time.time()
        if not claims["nbf"] - 10 <= now < claims["exp"] or ISSUER not in claims["aud"]:
            return None
        private = claims["kubernetes.io"]
        namespace, account = private["namespace"], private["serviceaccount"]
        if not self._still("serviceaccounts", namespace, account):
            return None
        for kind, plural in _BOUND.items():
            bound = private.get(kind.lower())
            # A pod's node is only informative: the token is bound to the pod.
            informative = kind == "Node" and "pod" in private
            if bound and not informative and not self._still(plural, "" if kind == "Node" else namespace, bound):
                return None
        groups = (_SA_GROUP, f"{_SA_GROUP}:{namespace}", AUTHENTICATED)
        extra = {_EXTRA + "credential-id": (f"JTI={claims['jti']}",)}
        for bound in ("pod", "node"):
            if bound in private:
                extra |= {f"{_EXTRA}{bound}-{part}": (private[bound][part],) for part in ("name", "uid")}
        return ApiUser(f"system:serviceaccount:{namespace}:{account['name']}", groups, account["uid"], extra)

    def _still(self, plural: str, namespace: str, wanted: Object) -> bool:
        current = self._reads.get("", plural, namespace, wanted["name"])
        return current is not None and hmac.compare_digest(str(current["metadata"].get("uid")), str(wanted["uid"]))

    def _signing_key(self) -> Any:
        if self._key is None:
            if self._key_path is None:
                raise ApiError(501, "NotImplemented", "no token issuer is configured")
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            self._key = load_pem_private_key(self._key_path.read_bytes(), password=None)
        return self._key

    def public_keys(self) -> list[Object]:
        """The JSON web keys that tokens can be verified with. Raises ApiError 501 where there is no key."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = self._signing_key().public_key()
        numbers = key.public_numbers()
        name = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
        x, y = (_base64(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        return [{"use": "sig", "kty": "EC", "kid": _base64(name), "crv": "P-256", "alg": "ES256", "x": x, "y": y}]

    def _signed(self, claims: Object) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        key = self._signing_key()
        text = f"{_base64({'alg': 'ES256', 'kid': self.public_keys()[0]['kid']})}.{_base64(claims)}"
        r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def _verified(self, token: str) -> Object | None:
        """The claims of a token that this server has signed."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        if self._key_path is None:
            return None
        head, body, signature = token.split(".")
        try:
            raw = _unbase64(signature)
            if len(raw) != 64 or msgspec.json.decode(_unbase64(head)).get("alg") != "ES256":
                return None
            encoded = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            public = self._signing_key().public_key()
            public.verify(encoded, f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
            claims: Object = msgspec.json.decode(_unbase64(body))
        except (ValueError, AttributeError, InvalidSignature):
            return None
        return claims

    # --- authorization --------------------------------------------------------------------------------------------

    def allowed(self, user: ApiUser, attributes: Object) -> tuple[bool, str]:
        """Whether ``user`` may, and why not."""
        return self.rbac.allowed(user, attributes)

    def rules(self, user: ApiUser, namespace: str) -> tuple[list[Object], list[Object]]:
        """The resourceRules and nonResourceRules of a SelfSubjectRulesReview."""
        return self.rbac.rules(user, namespace)


def denial(user: ApiUser, attributes: Object, reason: str) -> ApiError:
    """The ApiError 403 of a request that ``user`` may not make."""
    verb = attributes.get("verb")
    if "path" in attributes:
        message = f'forbidden: User "{user.name}" cannot {verb} path "{attributes["path"]}"'
        return ApiError(403, "Forbidden", message + (f": {reason}" if reason else ""), {})
    resource, name = str(attributes.get("resource") or ""), str(attributes.get("name") or "")
    group, namespace = str(attributes.get("group") or ""), attributes.get("namespace")
    target = f"{resource}/{attributes['subresource']}" if attributes.get("subresource") else resource
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    text = f'User "{user.name}" cannot {verb} resource "{target}" in API group "{group}" {where}'
    return forbidden(group, resource, name, text + (f": {reason}" if reason else ""))


def _base64(value: Object | bytes) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
