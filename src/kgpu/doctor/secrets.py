"""Takes secrets out of text and of objects before anybody sees or stores them.

Environment values are kept only for variables that are known to carry no secret; in all other text what looks like a
credential is replaced. Total: any value in, the same shape out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kgpu.doctor import secret_commands
from kgpu.doctor.secret_commands import BETWEEN, HIDDEN

__all__ = [
    "HIDDEN",
    "cleaned",
    "data_of",
    "env_list",
    "env_value",
    "headers",
    "labels",
    "lines",
    "messages",
    "scrubbed",
    "under_key",
    "words",
]

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
    r"(?:PASSW(?:OR)?D|PASSPHRASE|SECRET|TOKEN(?!I[SZ]E)|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH(?!OR)|LICENSE_KEY"
    r"|CONNECTION_STRING|COOKIE|[_-]KEY$|^KEY$|(?:^|[_./-])(?:PASS(?![_-]DEVICE)|PWD|PW|SALT)(?:$|[_./-]))",
    re.IGNORECASE,
)
# Fields that say which Secret is meant, or which of its entries.
_REFERENCE: Final = re.compile(r"name|key|.*secret(?:name|ref|keyref)", re.IGNORECASE | re.DOTALL)
# What stands where a credential would, and is none: a shell's variable, the code or the words of a refusal.
_NO_VALUE: Final = (
    r"(?![\\\"']*(?:<redacted>|\$[({]?[A-Z_][A-Z0-9_]{0,60}[)}]?(?:[\\\"'\s]|$)))"
    r"(?!\d{3}[\"',;:.)]{0,3}(?:\s|$))"
    r"(?!(?:unexpected|failed|invalid|expired|not|no|error|dial|lookup|read|remote|tls|x509|proxyconnect|net/http|context"
    r"|secrets?|configmaps?|references|volume|object|could|couldn't|cannot|can't|unable|permission|access|missing|required"
    r"|must|unauthorized|forbidden|rpc|is|was|has|EOF)(?:[\s:]|$))"
)
# A value up to its closing quote, whichever the opening one was, or without quotes up to a blank or the like. Where the
# words of a list are apart within quotes, all of them are hidden.
_OPENING: Final = r"(?:(?P<escaped>\\{1,3}[\"'])|(?P<double>\")|(?P<single>'))?+"
_QUOTED: Final = (
    r"(?(escaped)(?:(?!(?<!\\)(?P=escaped))[^\r\n])+|(?(double)(?:[^\"\\\r\n]|\\[^\r\n])+"
    r"|(?(single)(?:[^'\\\r\n]|\\[^\r\n]|'')+|NONE)))"
)
_VALUE: Final = r"(?![\s}\]]|,\s?[\\\"'])" + _QUOTED.replace("NONE", r"(?:[^\s\",;&\\]|\\(?![\"'])){3,}")
# Of values that nothing but a word of people announces: no path, no name in a domain, letters with digits.
_RANDOM: Final = (
    r"(?![/<$])(?=[^\s\"',;&\\]{0,80}\d)(?=[^\s\"',;&\\]{0,80}[A-Za-z])(?![\w.-]{1,80}/)[^\s\"',;&\\)\]]{8,}"
)
_KEYS_OF: Final = (
    r"(?:private|signing|encryption|license|account|shared[-_]?access|access|api|master|storage|auth|ssh[-_]?private)"
    r"[-_\s]?key|secret[-_]?key"
)
_NAMES: Final = "key passw passphrase"
# Flags that only sound like a credential's, with a value that shows it.
_OPEN_FLAG: Final = (
    r"--?(?:pass-device|[\w-]{0,60}?(?:tokeni[sz]e|tokens" + BETWEEN + r"[\d.]{1,12}(?![^\s\"'\\,\]])"
    r"|[_-]file" + BETWEEN + r"(?:\.{0,2}|~)/))"
)


def _row(gates: str, pattern: str, instead: str = rf"\1{HIDDEN}") -> tuple[tuple[str, ...], re.Pattern[str], str]:
    """What to replace, sought only in texts that have one of these words in small letters."""
    return tuple(gates.split()), re.compile(pattern), instead


# Every pattern begins at something literal, or right behind what can't be part of it: none is tried at each letter.
_IN_TEXT: Final = (
    _row(
        "eyj",
        r"(?<![\w-])(?=[\w-]++\.[\w-]{8,}+\.)([\w-]*?)\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    ),
    _row(
        "-----begin",
        r"(?s)-----BEGIN[A-Z\s]{1,40}PRIVATE\sKEY(?:\sBLOCK)?-----.*?(?:-----END[A-Z\s]{1,40}PRIVATE\sKEY(?:\sBLOCK)?-----|$)",
        HIDDEN,
    ),
    _row(
        "ghp gho ghu ghs ghr github_pat glpat nvapi hf- hf_ sk- sk_ xox pypi dckr_pat",
        r"\b(?:gh[pousr]|github_pat|glpat|nvapi|hf|sk|xox[abprs]|pypi|dckr_pat)[-_][\w-]{16,}",
        HIDDEN,
    ),
    _row("npm_ aiza ya29", r"\bnpm_[A-Za-z0-9]{30,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}", HIDDEN),
    _row("akia asia agpa aroa", r"\bA(?:KIA|SIA|GPA|ROA)[0-9A-Z]{16}\b", HIDDEN),
    _row(
        "cookie",
        r"(?i)\b((?:set-)?cookie\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?)"
        r"(?!<redacted>)[^\s\"'\\=]{1,80}=[^\r\n\x1f\"'\\]+",
    ),
    _row("bearer", r"(?i)\b(bearer\\?[\"']?[\s:=]{1,99}\\?[\"']?)[\w.~+/=-]{16,}"),
    _row("basic", r"(?i)\b(basic\s{1,99})[A-Za-z0-9+/]{8,}={1,2}"),
    # Up to the last @ of the word. What follows a host is its port, what an image's name its tag and digest.
    _row(
        "://",
        r"(://(?!\[)[^\s/:@]{0,100}:)(?!\d{1,5}/)(?:(?!://)[^\s\"'\\<>])+@(?!sha256:)",
        rf"\1{HIDDEN}@",
    ),
    _row("://", r"(://)[^\s/:@]{8,}@(?!sha256:)", rf"\1{HIDDEN}@"),
    _row("hooks.slack", r"(?i)(\bhooks\.slack\.com/services/)[\w/-]+"),
    _row(
        "sig= signature= token= key= code= credential=",
        r"(?i)([?&](?:sig|signature|token|key|code|X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token))=)[^&\s\"'\\]+",
    ),
    _row(  # A registry's refusal reads "may require authorization: server message: ...".
        "authorization",
        r"(?i)\b(authorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?(?!server\s|no\s|failed\s)\w{1,40}\s{1,8})"
        r"(?!<redacted>)[^\s\"',;\\]+",
    ),
    _row(
        f"{_NAMES} secret token hmac",
        rf"(?i)((?:passw(?:or)?d|passphrase|secret(?![-_ ]?name)|token|{_KEYS_OF}|hmac"
        r"|(?-i:(?<=[A-Z0-9])(?<!PUBLIC)_KEY(?==)))"
        rf"\\?[\"']?\s{{0,99}}[=:]{{1,2}}>?\s{{0,99}}{_OPENING})(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(
        "pass pwd pw auth",
        r"(?i)(?<![^\W_])((?:pass|pwd|pw|auth)"
        rf"\\?[\"']?[ \t]{{0,99}}[=:]{{1,2}}>?[ \t]{{0,99}}{_OPENING})(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(
        "passw passphrase",
        rf"(?i)((?:passw(?:or)?d|passphrase)\s{{1,8}}{_OPENING})(?-i:{_NO_VALUE}){_QUOTED.replace('NONE', '(?!)')}",
    ),
    _row("</", r"(?i)(<[\w:.-]{0,40}(?:passw(?:or)?d|passphrase|secret|token|key)>)(?!\s|<)[^<\r\n\x1f]+(?=</)"),
    _row(
        "machine default",
        r"(?i)\b((?:machine\s{1,8}\S{1,200}|default)\s{1,8}login\s{1,8}\S{1,200}\s{1,8}password\s{1,8})(?!<redacted>)\S+",
    ),
    _row(
        "pass pwd token secret key",
        r"(?i)(?<![\w.-])(?=--?[\w-]{0,40}?(?:pass|pwd|token|secret|key))"
        rf"(?!{_OPEN_FLAG})(--?[\w-]{{0,40}}(?:pass(?:w(?:or)?d|phrase)?(?![a-z])|pwd|token|secret|key)"
        rf"[\w-]{{0,40}}(?:\s{{1,8}}|{BETWEEN}))(?![-,])(?-i:{_NO_VALUE})[^\s\"'\\]+",
    ),
    _row(  # "Using HF token hf9x...", "api_key 7f3a...", "the password is ...".
        f"{_NAMES} token hmac credential authorization",
        rf"(?i)((?:passw(?:or)?d|passphrase|token|{_KEYS_OF}|hmac|credentials?|authorization)"
        rf"\\?[\"']?(?:\s{{1,8}}|:\s{{0,8}})(?:(?:is|was|of|to)\s{{1,8}})?\\?[\"']?)(?-i:{_NO_VALUE}{_RANDOM})",
    ),
    _row(
        "-u --user --proxy-user",
        r"(?<![\w.-])((?:-u|--user|--proxy-user)(?:\s{1,8}|=)[^\s:]{1,100}:)(?!\d+(?:\s|$)|<redacted>)\S+",
    ),
)
_STAYS: Final = re.compile(_OPEN_FLAG, re.IGNORECASE)
_KEY_BEGINS: Final = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_KEY_ENDS: Final = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY")
_BASE64: Final = re.compile(r"\s*[A-Za-z0-9+/=]{8,}\s*")
_PLAIN: Final = frozenset({"", "true", "false", "enabled", "disabled"})
_APART: Final = "\x1f"
"""White space to every pattern, and in no word."""


def cleaned(text: str) -> str:
    """The text with everything replaced that looks like a credential."""
    small = text.lower()
    for gates, pattern, instead in _IN_TEXT:
        for gate in gates:
            if gate in small:
                text = pattern.sub(instead, text)
                break
    return secret_commands.hidden(text)


def lines(texts: Iterable[str]) -> tuple[str, ...]:
    """The lines of a log, each cleaned; a private key goes with all the lines that it has."""
    found: list[str] = []
    inside = False
    for line in texts:
        begins, ends = _KEY_BEGINS.search(line), _KEY_ENDS.search(line)
        if ends and not begins and not inside:  # the log was cut within the key
            at = len(found)
            while at and _BASE64.fullmatch(found[at - 1]):
                at -= 1
            found[at:] = [HIDDEN] * (len(found) - at)
        hide = inside or (ends is not None and begins is None)
        found.append(HIDDEN if hide else cleaned(line))
        inside = (inside or begins is not None) and ends is None
    return tuple(found)


def env_value(name: str, value: str) -> str:
    """A variable's value where it can't be a secret."""
    if not value:
        return value
    return cleaned(value) if _is_open(name) else HIDDEN


@functools.lru_cache(maxsize=8192)
def _is_open(name: str) -> bool:
    return not _SECRET_NAME.search(name) and bool(_OPEN_ENV.fullmatch(name))


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


def words(value: Any, program: Sequence[str] = ()) -> Any:
    """A container's ``args`` or ``command`` with what follows a flag that names a secret hidden.

    Each word is judged by itself, then all together, as a shell's line, after those of ``program``: a password's flag
    is known by who takes it, and a user's password by ``-u`` before it. Only together, the end of one word and the
    beginning of the next would be taken for a name and its value, and the value behind it would stay.
    """
    if not isinstance(value, list):
        return value
    own = [cleaned(word) for word in value if isinstance(word, str)]
    line = _APART.join([*map(cleaned, program), *own])
    said = cleaned(line).split(_APART) if not any(_APART in word for word in (*program, *own)) else []
    together = said[len(program) :] if len(said) == len(program) + len(own) else [HIDDEN] * len(own)
    found: list[Any] = []
    before, rest = "", iter(together)
    for word in value:
        if not isinstance(word, str):
            found.append(word)
            continue
        flag, equals, given = word.partition("=")
        named = flag.startswith("-") and bool(_SECRET_NAME.search(flag))
        shown = next(rest)
        if before and not _STAYS.match(f"{before} {word}"):
            shown = HIDDEN
        elif named and equals and not _STAYS.match(f"{flag} {given}"):
            shown = f"{flag}={HIDDEN}"
        found.append(shown)
        before = flag if named and not equals else ""
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
    return HIDDEN if _is_secret(key) else value


@functools.lru_cache(maxsize=8192)
def _is_secret(key: str) -> bool:
    return bool(_SECRET_NAME.search(key)) and not _REFERENCE.fullmatch(key)


def labels(value: Mapping[str, Any]) -> dict[str, Any]:
    """Labels without what is named or looks like a credential; thousands of objects have the same keys."""
    return {
        key: (HIDDEN if _is_secret(str(key)) and one not in _PLAIN else cleaned(one)) if isinstance(one, str) else one
        for key, one in value.items()
    }


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
