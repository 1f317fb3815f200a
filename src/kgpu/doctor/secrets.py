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
    r"|CONNECTION_STRING|COOKIE|_KEY$|^KEY$)",
    re.IGNORECASE,
)
_IN_TEXT: Final = (
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL), HIDDEN),
    (re.compile(r"\b(?:ghp|gho|ghs|github_pat|glpat|nvapi|hf|sk|xox[abp])[-_][\w-]{16,}"), HIDDEN),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"(?i)\b(bearer)(\s+)[\w.~+/=-]{16,}"), rf"\1\2{HIDDEN}"),
    (re.compile(r"(?i)\b(basic)(\s+)[A-Za-z0-9+/]{8,}={1,2}"), rf"\1\2{HIDDEN}"),
    (re.compile(r"(://[^\s/:@]{1,100}:)[^\s/@]{1,200}@"), rf"\1{HIDDEN}@"),
    (
        re.compile(
            r"(?i)\b([\w.-]{0,40}(?:passw(?:or)?d|passphrase|secret(?![-_ ]?name)|token|api[-_]?key|access[-_]?key))"
            r"(\"?\s*[=:]\s*\"?)(?!<redacted>)([^\s\",;&]{3,})"
        ),
        rf"\1\2{HIDDEN}",
    ),
)
_TOKENS: Final = re.compile(r"(?i)eyJ|PRIVATE KEY|bearer|basic|://|passw|passphrase|secret|token|key|AKIA|[-_]")


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
    hide = False
    for word in value:
        if not isinstance(word, str):
            found.append(word)
            continue
        flag, equals, _ = word.partition("=")
        named = flag.startswith("-") and bool(_SECRET_NAME.search(flag))
        found.append(HIDDEN if hide else f"{flag}={HIDDEN}" if named and equals else cleaned(word))
        hide = named and not equals
    return found


def data_of(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap's ``data`` without credentials; of a Secret only the keys."""
    if kind == "Secret":
        return dict.fromkeys(map(str, value), HIDDEN)
    return {
        str(key): HIDDEN if _SECRET_NAME.search(str(key)) else cleaned(text) if isinstance(text, str) else text
        for key, text in value.items()
    }


def scrubbed(value: Any, depth: int = 0) -> Any:
    """Any document with every text cleaned and environments hidden; what is nested too deep is left out."""
    if isinstance(value, str):
        return cleaned(value)
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {key: _KEYS.get(key, _same)(scrubbed(one, depth + 1)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(one, depth + 1) for one in value]
    return value


def _same(value: Any) -> Any:
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


_KEYS: Final[Mapping[str, Callable[[Any], Any]]] = {"env": env_list, "args": words, "command": words}
_MESSAGES: Final = frozenset({"message", "reason", "note"})
