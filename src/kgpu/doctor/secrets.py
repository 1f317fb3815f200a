"""Takes secrets out of text and of objects before anybody sees or stores them.

Environment values are kept only for variables that are known to carry no secret; in all other text what looks like a
credential is replaced. Total: any value in, the same shape out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

HIDDEN: Final = "<redacted>"
MAX_DEPTH: Final = 60

# What programs around accelerators read from their environment; none of these is a credential.
_OPEN_ENV: Final = re.compile(
    r"(?:NVIDIA|CUDA|NCCL|UCX|DCGM|GPU|MIG|MPS|DP|CDI|NFD|GFD|NRI|KGPU|HABANA|PT_HPU|HCCL|HIP|ROCR?|HSA|AMD|ROCM|ZE"
    r"|PYTORCH|OMP|RUNTIME|CONTAINERD|CRIO|DOCKER|TOOLKIT|DRIVER|VALIDATOR|WITH|ENABLE|DISABLE|FAIL|PASS|DEVICE|CONFIG"
    r"|SHARED|RDMA|MOFED|GDS|GDRCOPY|IMEX|FABRIC|TORCH|WORLD|RANK|LOCAL|MASTER|VLLM|GLOO|COMPUTE|OPENCL|OPERATOR"
    r"|KUBERNETES|NODE|POD|NAMESPACE|FALLBACK|DEFAULT|ALLOW|OPENSHIFT|KERNEL|LOG|LD|PATH|XLA|JAX|TF|FI|IB|PMIX"
    r")(?:_[A-Z0-9_]*)?"
)
_SECRET_NAME: Final = re.compile(
    r"(?:PASSW(?:OR)?D|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH(?!OR)|LICENSE_KEY"
    r"|CONNECTION_STRING|COOKIE|[_-]KEY$|^KEY$|(?:^|[_./-])(?:PASS(?![_-]DEVICE)|PWD|PW|SALT)(?:$|[_./-]))",
    re.IGNORECASE,
)
# Fields that say which Secret is meant, or which of its entries.
_REFERENCE: Final = re.compile(r"name|key|.*secret(?:name|ref|keyref)", re.IGNORECASE | re.DOTALL)
# What stands where a credential would, and is none: a shell's variable, the code or the words of a refusal.
_NO_VALUE: Final = (
    r"(?![\\\"']*(?:<redacted>|\$[({]?[A-Z_][A-Z0-9_]{0,60}[)}]?(?:[\\\"'\s]|$)))"
    r"(?!\d{3}[\"',;:.)]{0,3}(?:\s|$))"
    r"(?!(?:unexpected|failed|invalid|expired|not|no|error|dial|lookup|read|remote|tls|x509|proxyconnect|net/http|context)"
    r"[\s:])"
)
_VALUE: Final = r"(?:[^\s\",;&\\]|\\(?![\"'])){3,}"
_IN_TEXT: Final = (
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), HIDDEN),
    (re.compile(r"\b(?:ghp|gho|ghs|github_pat|glpat|nvapi|hf|sk|xox[abp])[-_][\w-]{16,}"), HIDDEN),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"(?i)\b(bearer)(\s+)[\w.~+/=-]{16,}"), rf"\1\2{HIDDEN}"),
    (re.compile(r"(?i)\b(basic)(\s+)[A-Za-z0-9+/]{8,}={1,2}"), rf"\1\2{HIDDEN}"),
    (re.compile(r"(://[^\s/:@]{1,100}:)[^\s/@]{1,200}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(://)[^\s/:@]{8,}@(?!sha256:)"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?i)(\bhooks\.slack\.com/services/)[\w/-]+"), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"(?i)([?&](?:sig|signature|token|X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token))=)[^&\s\"'\\]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (
        # A registry's refusal reads "may require authorization: server message: ...".
        re.compile(
            r"(?i)\b(authorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?(?!server\s|no\s|failed\s)\w{1,40}\s{1,8})"
            r"(?!<redacted>)[^\s\"',;\\]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)\b([\w.-]{0,40}(?:passw(?:or)?d|passphrase|secret(?![-_ ]?name)|token|api[-_]?key|access[-_]?key))"
            rf"(\\?[\"']?\s{{0,99}}[=:]\s{{0,99}}\\?[\"']?)(?-i:{_NO_VALUE}){_VALUE}"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)\b((?:[\w.-]{0,40}[_.-])?(?:pass|pwd|auth))"
            rf"(\\?[\"']?[ \t]{{0,99}}[=:][ \t]{{0,99}}\\?[\"']?)(?-i:{_NO_VALUE}){_VALUE}"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)(?<![\w.-])(?!--?pass-device)(--?[\w-]{0,40}(?:pass(?:w(?:or)?d|phrase)?(?![a-z])|pwd|token|secret|key)"
            rf"[\w-]{{0,40}}\s{{1,8}})(?!-)(?-i:{_NO_VALUE})\S+"
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(r"(?<![\w.-])((?:-u|--user|--proxy-user)(?:\s{1,8}|=)[^\s:]{1,100}:)(?!\d+(?:\s|$)|<redacted>)\S+"),
        rf"\1{HIDDEN}",
    ),
)
_TOKENS: Final = re.compile(
    r"(?i)eyJ|bearer|basic|://|pass|pwd|auth|secret|token|key|[?&](?:sig|X-)|hooks\.slack|AKIA|-u[\s=]|-user"
    r"|(?:gh[pos]|github_pat|glpat|nvapi|hf|sk|xox[abp])[-_]"
)
_USER_FLAGS: Final = frozenset({"-u", "--user", "--proxy-user"})


def cleaned(text: str) -> str:
    """The text with everything replaced that looks like a credential."""
    if not _TOKENS.search(text):
        return text
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def env_value(name: str, value: str) -> str:
    """A variable's value where it can't be a secret."""
    if not value:
        return value
    if _SECRET_NAME.search(name) or not _OPEN_ENV.fullmatch(name):
        return HIDDEN
    return cleaned(value)


def env_list(value: Any) -> Any:
    """A container's ``env`` with values hidden; references stay, they name no value."""
    if not isinstance(value, list):
        return value
    return [
        {**row, "value": env_value(str(row.get("name") or ""), row["value"])}
        if isinstance(row, dict) and isinstance(row.get("value"), str)
        else row
        for row in value
    ]


def words(value: Any) -> Any:
    """A container's ``args`` or ``command`` with what follows a flag that names a secret hidden."""
    if not isinstance(value, list):
        return value
    found: list[Any] = []
    hide, before = False, ""
    for word in value:
        if not isinstance(word, str):
            found.append(word)
            continue
        flag, equals, _ = word.partition("=")
        named = flag.startswith("-") and bool(_SECRET_NAME.search(flag))
        # Judged with its flag, without which a user's password looks like any two words.
        lead = f"{before} " if before in _USER_FLAGS else ""
        said = cleaned(lead + word).removeprefix(lead)
        found.append(HIDDEN if hide else f"{flag}={HIDDEN}" if named and equals else said)
        hide, before = named and not equals, word
    return found


def headers(value: Any) -> Any:
    """Headers of requests without their values."""
    if not isinstance(value, list):
        return value
    return [{**row, "value": HIDDEN} if isinstance(row, dict) and "value" in row else row for row in value]


def under_key(key: Any, value: Any) -> Any:
    """A field's value, hidden where the field's name is that of a secret and not of a reference to one."""
    if not isinstance(value, str) or not value or not isinstance(key, str):
        return value
    return HIDDEN if _SECRET_NAME.search(key) and not _REFERENCE.fullmatch(key) else value


def data_of(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap's ``data`` without credentials; of a Secret only the keys."""
    if kind == "Secret":
        return dict.fromkeys(map(str, value), HIDDEN)
    return {
        str(key): HIDDEN if isinstance(text, str) and _SECRET_NAME.search(str(key)) else scrubbed(text)
        for key, text in value.items()
    }


def scrubbed(value: Any, depth: int = 0) -> Any:
    """Any document with every text cleaned and environments hidden; what is nested too deep is left out."""
    if isinstance(value, str):
        return cleaned(value)
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {
            key: _KEYS[key](scrubbed(one, depth + 1)) if key in _KEYS else under_key(key, scrubbed(one, depth + 1))
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrubbed(one, depth + 1) for one in value]
    return value


def messages(value: Any, depth: int = 0) -> Any:
    """A status with what is said for people cleaned: all else there are names, numbers and times."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {
            key: (cleaned(one) if key in _MESSAGES else one) if isinstance(one, str) else messages(one, depth + 1)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [messages(one, depth + 1) if isinstance(one, dict | list) else one for one in value]
    return value


_KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "env": env_list, "args": words, "command": words, "httpHeaders": headers,
}  # fmt: skip
_MESSAGES: Final = frozenset({"message", "reason", "note"})
