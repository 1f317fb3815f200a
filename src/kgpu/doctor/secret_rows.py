"""What credentials look like in text: rows of patterns, for those that have a form of their own and those that a name
announces. ``secrets`` seeks them.
"""

from __future__ import annotations

import re
from typing import Final

from kgpu.doctor.secret_commands import BETWEEN

# What stands where a credential would, and is none: a shell's variable, the code or the words of a refusal.
_NO_VALUE: Final = (
    r"(?![\\\"']*(?:<redacted>|\$[({]?[A-Z_][A-Z0-9_]{0,60}[)}]?(?:[\\\"'\s]|$)))"
    r"(?!\d{3}[\"',;:.)]{0,3}(?:\s|$))"
    r"(?!(?:unexpected|failed|invalid|expired|not|no|error|dial|lookup|read|remote|tls|x509|proxyconnect|net/http"
    r"|context|secrets?|configmaps?|references|volume|object|could|couldn't|cannot|can't|unable|permission|access"
    r"|missing|required|must|unauthorized|forbidden|rpc|is|was|has|EOF)(?:[\s:]|$))"
)
# A value up to its closing quote, whichever the opening one was, or without quotes up to a blank or the like. Where the
# words of a list are apart within quotes, all of them are hidden.
# Before it YAML may have a type or an anchor.
_OPENING: Final = r"(?:[!&][\w!/.:-]{1,40}[ \t]{1,8})?+(?:(?P<escaped>\\{1,7}[\"'])|(?P<double>\")|(?P<single>'))?+"
_QUOTED: Final = (
    r"(?(escaped)(?:(?!(?<!\\)(?P=escaped))[^\r\n])+|(?(double)(?:[^\"\\\r\n]|\\[^\r\n])+"
    r"|(?(single)(?:[^'\\\r\n]|\\[^\r\n]|'')+|NONE)))"
)
_VALUE: Final = r"(?![\s}\]]|,\s?[\\\"'])" + _QUOTED.replace("NONE", r"(?:[^\s\",;&\\]|\\(?![\"'])){3,}")
# Of values that nothing but a word of people announces: no path, no name in a domain, letters with digits.
_RANDOM: Final = (
    r"(?![/<$])(?=[^\s\"',;&\\]{0,80}\d)(?=[^\s\"',;&\\]{0,80}[A-Za-z])(?!(?!"
    # What is long and of base64's letters alone, of both cases, is no path for having a slash.
    r"(?=[a-z0-9+/]{0,80}[A-Z])(?=[A-Z0-9+/]{0,80}[a-z])[A-Za-z0-9+/]{32,200}={0,2}(?![\w./+-])"
    r")[\w.-]{1,80}/)[^\s\"',;&\\)\]]{8,}"
)
_END_OF_NAME: Final = r"\\{0,7}[\"']?"
# A short word for a credential as one of a name's words: after a dash or the like, or with a capital in the middle.
_SHORT_WORD: Final = (
    r"(?:(?<![^\W_])(?:pass|pwd|pw|auth|cred(?:ential)?s?)|(?<=[A-Z0-9][-_])logins?"
    r"|(?-i:(?<=[a-z0-9])(?:Pass|Pwd|Pw|Auth|Cred(?:ential)?s?|Logins?)))"
)
# The name of a variable, a header or a parameter, as one field of a row of two; below, a name with its value under it.
FIELD: Final = (
    rf"\bname{_END_OF_NAME}\s{{0,8}}[=:]\s{{0,8}}{_END_OF_NAME}[\w.-]{{0,60}}(?:token(?!s|i[sz]e)|passw(?:or)?d"
    r"|passphrase|passcode|secret|credential|api[-_]?key|access[-_]?key|[-_](?:key|pass|pwd|pw|creds?|login)"
    r"|authorization|cookie|(?-i:(?<=[a-z0-9])(?:Pass|Pwd|Creds?|Login)))[\w.-]{0,20}"
    rf"{_END_OF_NAME}\s{{0,8}},?"
)
_IS: Final = r"(?:[+?]?[=:]{1,2}>?|->|%3[dD]|\\u003[dD])"
_KEYS_OF: Final = (
    r"(?:private|signing|encryption|license|account|shared[-_]?access|access|api|master|storage|auth|ssh[-_]?private)"
    r"[-_\s]?key|secret[-_]?key"
)
BLOCK: Final = (
    rf"(?:passw(?:or)?d|passphrase|passcode|secret|token|creds?|credentials|{_KEYS_OF})\\{{0,3}}[\"']?"
    r"[ \t]{0,8}:[ \t]{0,8}[|>][+-]?\d?[ \t]{0,8}"
)
_NAMES: Final = "key passw passphrase"
# Flags that only sound like a credential's, with a value that shows it.
OPEN_FLAG: Final = (
    r"--?(?:pass-device|[\w.-]{0,60}?(?:tokeni[sz]e|tokens" + BETWEEN + r"[\d.]{1,12}(?![^\s\"'\\,\]])"
    r"|[_-]file" + BETWEEN + r"(?:\.{0,2}|~)/))"
)


def _row(gates: str, pattern: str, lead: int = -1) -> tuple[tuple[str, ...], re.Pattern[str], int]:
    """What to hide: all of it, or what comes after its first group. Texts with none of the small words are not read.

    ``lead``: how many characters a match may begin before the first of these words, for what is slow to seek; -1: any.
    """
    return tuple(gates.split()), re.compile(pattern), lead


# Every pattern begins at something literal, or right behind what can't be part of it: none is tried at each letter.
IN_TEXT: Final = (
    _row(
        "eyj",
        r"(?<![\w-])(?=[\w-]++\.[\w-]{8,}+\.)([\w-]*?)\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    ),
    _row(
        "-----begin",
        r"(?s)-----BEGIN[A-Z\s]{1,40}PRIVATE\sKEY(?:\sBLOCK)?-----.*?"
        r"(?:-----END[A-Z\s]{1,40}PRIVATE\sKEY(?:\sBLOCK)?-----|$)",
    ),
    _row(
        "ghp gho ghu ghs ghr github_pat glpat glrt gldt glsa nvapi hf- hf_ sk- sk_ xox xapp pypi dckr_pat",
        r"\b(?:gh[pousr]|github_pat|gl(?:pat|rt|dt|sa)|nvapi|xox[abeprs]|pypi|dckr_pat)[-_][\w-]{16,}"
        # Objects may be named so too, in small letters and with dashes between.
        r"|\b(?:hf|sk)_[\w-]{16,}|\b(?:hf|sk|xapp)-(?=[\w-]{0,400}[A-Z]|[\w-]{0,16}\w{24})[\w-]{16,}",
    ),
    _row(
        "gsk_ r8_ rpa_ tskey- dapi hvs. hvb. dop_v1_ lsv2_",
        r"\b(?:(?:gsk|r8|rpa|dop_v1|lsv2)_|tskey-)[\w-]{20,}|\bdapi[0-9a-f]{32}|\bhv[sb]\.[\w-]{20,}",
    ),
    _row("npm_ aiza ya29", r"\bnpm_[A-Za-z0-9]{30,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"),
    _row("akia asia agpa aroa", r"\bA(?:KIA|SIA|GPA|ROA)[0-9A-Z]{16}\b"),
    _row(
        "cookie",
        r"(?i)\b((?:set-)?cookie\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?)"
        r"(?!<redacted>)[^\s\"'\\=]{1,80}=[^\r\n\x1f\"'\\]+",
    ),
    _row("bearer", r"(?i)\b(bearer\\?[\"']?(?:[\s:=+]|%20){1,99}\\?[\"']?)[\w.~+/=-]{16,}"),
    _row("basic", r"(?i)\b(basic\s{1,99})[A-Za-z0-9+/]{8,}={1,2}"),
    # Up to the last @ of the word. What follows a host is its port, what an image's name its tag and digest.
    _row(
        "://",
        r"(://(?!\[)[^\s/:@]{0,100}:)(?!\d{1,5}/)(?:(?!://)[^\s\"'\\<>])+(?=@(?!sha256:))",
    ),
    _row("://", r"(://)[^\s/:@]{8,}(?=@(?!sha256:))"),
    _row(  # As JSON is written where slashes are escaped.
        ":\\",
        r"(:\\{1,7}/\\{1,7}/[^\s/:@]{0,100}:)(?!\d{1,5}\\{0,7}/)[^\s\"'/@<>]{1,200}(?=@(?!sha256:))",
    ),
    # A database's or a proxy's address that has no scheme.
    _row(
        "@tcp( @unix(",
        r"(?i)(?<![\w.-])([\w.-]{1,64}:)(?!<redacted>)[^\s\"'@]{1,200}(?=@(?:tcp|unix)\()",
    ),
    _row(
        "proxy dsn",
        rf"(?i)((?:proxy|dsn){_END_OF_NAME}\s{{0,8}}[=:]\s{{0,8}}{_END_OF_NAME}[\w.-]{{1,64}}:)"
        r"(?!<redacted>)[^\s\"'@/]{1,200}(?=@)",
    ),
    # What is kept of passwords in files such as htpasswd; a dollar may be doubled or escaped there.
    _row(
        "$",
        r"\$(?:apr1|[1567y]|gy|2[abxy]|argon2\w{1,2}|scrypt|(?:pbkdf2|bcrypt)[\w-]{0,12})"
        r"(?:\\{0,2}\$){1,2}[\w./+=,$\\-]{20,200}",
    ),
    _row("{sha {ssha {md5 {smd5", r"(?i)\{S?(?:SHA(?:256|384|512)?|MD5)\}[A-Z0-9+/]{16,}={0,2}"),
    _row("hooks.slack", r"(?i)(\bhooks\.slack\.com/services/)[\w/-]+"),
    _row(  # Tokens that other services give out, each by its own beginning and length.
        "rk_ whsec_ sg. gocspx- 1//0 pul- atatt3 shp lin_api_ pmak- akcp ltai secret_ q~ age-secret- aq key-",
        r"\brk_(?:live|test)_\w{16,}|\bwhsec_[\w+/=]{24,}|\bSG\.[\w-]{16,64}\.[\w-]{16,}|\bGOCSPX-[\w-]{20,}"
        r"|\b1//0[\w-]{20,}|\bpul-[0-9a-f]{40}\b|\bATATT3[\w=-]{20,}|\bshp(?:at|ca|pa|ss)_[0-9a-f]{32}\b"
        r"|\blin_api_\w{32,}|\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}|\bAKCp[A-Za-z0-9]{40,}"
        r"|\bLTAI[A-Za-z0-9]{12,30}\b|\bsecret_[A-Za-z0-9]{43}\b|\b[A-Za-z0-9]{3}\dQ~[\w.~-]{31,34}"
        r"|\bAGE-SECRET-KEY-1[A-Z0-9]{50,}|\bAQ[A-Za-z0-9+/]{36}==|\bkey-[0-9a-f]{32}\b",
    ),
    _row("sk", r"\bSK[0-9a-f]{32}\b"),
    _row(":aa", r"(?<![\w.])(?:bot)?(\d{8,10}:)AA[\w-]{30,}"),
    # What is packed may hold anything: keys in PEM, a registry's logins, a release of Helm's.
    _row("ls0tls1crudjti eyj h4si", r"(?<![\w+/-])(?:LS0tLS1CRUdJTi|eyJ[A-Za-z0-9]{3}|H4sI)[\w+/-]{36,}+={0,2}(?!\.)"),
    _row(
        "/webhooks/ webhook.office.com",
        r"(?i)(\bdiscord(?:app)?\.com/api/webhooks/|\bwebhook\.office\.com/)[\w/@.-]+",
    ),
    _row(
        "sig= signature= token= key= code= credential=",
        r"(?i)([?&](?:sig|signature|token|key|code|X-(?:Amz|Goog)-"
        r"(?:Signature|Credential|Security-Token))=)[^&\s\"'\\]+",
    ),
    _row(  # A registry's refusal reads "may require authorization: server message: ...".
        "authorization",
        r"(?i)\b(authorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?(?!server\s|no\s|failed\s)\w{1,40}\s{1,8})"
        r"(?!<redacted>)[^\s\"',;\\]+",
    ),
    _row(
        f"{_NAMES} passcode secret token hmac connection",
        rf"(?i)((?:passw(?:or)?d(?:[-_]?hash)?|passphrase|passcode|secret(?![-_ ]?name)|token|{_KEYS_OF}|hmac"
        r"|connection[-_]?string"
        r"|(?-i:(?<=[A-Z0-9])(?<!PUBLIC)_KEY(?==)))"
        rf"{_END_OF_NAME}\s{{0,99}}{_IS}\s{{0,99}}{_OPENING})(?-i:{_NO_VALUE}){_VALUE}",
        lead=32,
    ),
    _row(  # The lines below a name, as YAML has them.
        "| >",
        rf"(?i)({BLOCK}"
        r"\r?(?:\n|\\n)\s{0,99})(?!<redacted>|\s|-----BEGIN)(?:(?!\\n)[^\r\n\x1f\"])+",
    ),
    _row(
        "passwords passwds passphrases tokens keys",
        r"(?i)((?:passw(?:or)?ds|passphrases|(?:auth|access|api|bearer)[-_]?tokens|(?:api|access|secret)[-_]?keys)"
        rf"{_END_OF_NAME}\s{{0,8}}[=:]\s{{0,8}}\[\s{{0,99}})(?!<redacted>|\]|\s)[^\]\r\n]{{1,4096}}",
    ),
    _row(  # A variable, a header or a parameter, as a row of two fields; in JSON, in YAML, as Go prints it.
        "value",
        rf"(?i)({FIELD}\s{{0,99}}{_END_OF_NAME}value{_END_OF_NAME}\s{{0,8}}[=:]\s{{0,8}}{_OPENING})"
        rf"(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(
        "set",
        r"(?i)(\bsetx?\s{1,8}(?:-\w{1,8}\s{1,8})?(?-i:[A-Z][A-Z0-9_]{0,60}"
        r"(?:_KEY|TOKEN|PASSWORD|PASSWD|PASSCODE|SECRET|_PASS|_CREDS?|_LOGIN))\s{1,8}"
        rf"{_OPENING})(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(
        "chpasswd",
        r"(?i)(\becho\s{1,8}(?:-\w{1,4}\s{1,8})?\\{0,3}[\"']?[\w.-]{1,64}:)(?!<redacted>)[^\s\"'|\\]{1,200}"
        r"(?=\\{0,3}[\"']?\s{0,8}\|\s{0,8}(?:sudo\s{1,8})?chpasswd)",
    ),
    _row(
        "pass pwd pw auth cred login",
        rf"(?i)({_SHORT_WORD}{_END_OF_NAME}[ \t\x1f]{{0,99}}{_IS}[ \t\x1f]{{0,99}}{_OPENING})(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(
        "passw passphrase",
        rf"(?i)((?:passw(?:or)?d|passphrase)\s{{1,8}}{_OPENING})(?-i:{_NO_VALUE}){_QUOTED.replace('NONE', '(?!)')}",
    ),
    _row("</", r"(?i)(<[\w:.-]{0,40}(?:passw(?:or)?d|passphrase|secret|token|key)>)(?!\s|<)[^<\r\n\x1f]+(?=</)"),
    _row(
        "machine default",
        r"(?i)\b((?:machine\s{1,8}\S{1,200}|default)\s{1,8}login\s{1,8}\S{1,200}\s{1,8}password\s{1,8})"
        r"(?!<redacted>)\S+",
    ),
    _row(
        "pass pwd token secret key cred",
        r"(?i)(?<![\w.-])(?=--?[\w.-]{0,40}?(?:pass|pwd|token|secret|key|cred))"
        rf"(?!{OPEN_FLAG})(--?[\w.-]{{0,40}}"
        r"(?:(?:pass(?:w(?:or)?d|phrase|code)?|cred(?:ential)?s?)(?![a-z])|pwd|token|secret|key)"
        rf"[\w-]{{0,40}}(?:\s{{1,8}}|{BETWEEN}))(?![-,])(?-i:{_NO_VALUE})[^\s\"'\\]+",
        lead=48,
    ),
    _row(  # What only one program, or another language, calls so.
        "bindpw bindpassword requirepass masterauth pass_phrase pass-phrase passwort kennwort erlang key_base art-api",
        r"(?i)((?:\bbindpw|bindpassword|\brequirepass|\bmasterauth|pass[-_]phrase|passwort|kennwort|erlang[-_.]?cookie"
        rf"|secret[-_]?key[-_]?base|x-jfrog-art-api){_END_OF_NAME}\s{{0,8}}{_IS}\s{{0,8}}{_OPENING})"
        rf"(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(
        "bindpw requirepass masterauth",
        rf"(?i)(\b(?:bindpw|requirepass|masterauth)\s{{1,8}}{_OPENING})(?-i:{_NO_VALUE}){_VALUE}",
    ),
    _row(  # Names that others use for what is no secret: only values that are nothing else.
        "app_key app-key appkey service_key routing_key secret_id secretid secret-id psk sharedkey shared_key "
        "application_key",
        r"(?i)((?:(?:app|application)[-_]?key|service[-_]?key|routing[-_]?key|secret[-_]?id|\bpsk"
        rf"|(?:pre[-_]?)?shared[-_]?key){_END_OF_NAME}"
        rf"\s{{0,8}}{_IS}\s{{0,8}}\\?[\"']?)(?-i:(?!<redacted>){_RANDOM})",
    ),
    _row("oracle:", r"(?i)(\bjdbc:oracle:\w{1,8}:[\w$#.-]{1,128}/)(?!<redacted>|/)[^\s@/\"']{1,200}(?=@)"),
    _row(  # define('DB_PASSWORD', '...'), os.putenv("API_KEY", "...")
        "(' (\"",
        r"(?i)((?:define|setenv|putenv|environ\.setdefault)\(([\"'])[\w.-]{0,60}"
        r"(?:passw(?:or)?d|passphrase|secret|token|[-_]key|[-_]pass|[-_]pwd)"
        r"[\w.-]{0,20}\2\s{0,8},\s{0,8}[\"'])(?!<redacted>)[^\"'\r\n]+",
    ),
    _row(  # An attribute that is named by another one.
        "value=",
        r"(?i)(\bkey=\"[\w.:-]{0,60}(?:passw(?:or)?d|passphrase|secret|token)[\w.-]{0,20}\"\s{1,8}value=\")"
        r"(?!<redacted>)[^\"\r\n]+",
    ),
    _row("--from-literal", r"(--from-literal(?:=|\s{1,8})\\{0,3}[\"']?[\w.-]{1,253}=)(?!<redacted>)[^\s\"'\\]+"),
    _row(  # echo ... | docker login --password-stdin
        "-stdin kinit passphrase-fd",
        r"(?i)(\b(?:echo|printf)\s{1,8}(?:-\w{1,4}\s{1,8})?\\{0,3}[\"']?)(?!<redacted>|\$|-)[^\s\"'|\\]{4,200}"
        r"(?=\\{0,3}[\"']?\s{0,8}\|\s{0,8}[^|\r\n]{0,200}"
        r"(?:(?:password|token|key|secret)-stdin|\bkinit\b|passphrase-fd))",
    ),
    _row(  # A manifest within a text: all that a Secret has.
        "secret",
        r"(?s)(\bkind:[ \t]*Secret\b(?:(?!\n---).){0,1000}?\n(?:data|stringData):[ \t]*\n)(?!<redacted>)"
        r"(?:[ \t]+[^\r\n]*(?:\r?\n|$))+",
    ),
    _row(  # As kubectl prints it.
        "secret",
        r"(?s)((?:^|\n)(?:data|stringData):[ \t]*\r?\n)(?!<redacted>)(?:[ \t]+[^\r\n]*(?:\r?\n|$))++"
        r"(?=(?:(?!\n---).){0,1000}?\bkind:[ \t]*Secret\b(?!\w))",
    ),
    _row(
        "secret",
        r"(\"kind\"\s{0,8}:\s{0,8}\"Secret\"[^{}]{0,1000}\"(?:data|stringData)\"\s{0,8}:\s{0,8}\{)[^{}]+(?=\})",
    ),
    _row(  # The items below a name, as YAML has them.
        "passwords passwds passphrases tokens keys",
        r"(?i)((?:passw(?:or)?ds|passphrases|(?:auth|access|api|bearer)[-_]?tokens|(?:api|access|secret)[-_]?keys)"
        r"\\?[\"']?:[ \t]{0,8}\r?\n)(?![ \t]*-[ \t]*(?:<redacted>|[\w.-]{1,60}:[ \t]))"
        r"(?:[ \t]*-[ \t][^\r\n]*(?:\r?\n|$))+",
    ),
    _row(  # "Using HF token hf9x...", "api_key 7f3a...", "the password is ...".
        f"{_NAMES} token hmac credential authorization",
        rf"(?i)((?:passw(?:or)?d|passphrase|token|{_KEYS_OF}|hmac|credentials?|authorization)"
        rf"\\?[\"']?(?:\s{{1,8}}|:\s{{0,8}})(?:(?:is|was|of|to)\s{{1,8}})?\\?[\"']?)(?-i:{_NO_VALUE}{_RANDOM})",
        lead=32,
    ),
    _row(
        "-u --user --proxy-user",
        r"(?<![\w.-])((?:-u|--user|--proxy-user)(?:\s{1,8}|=)[^\s:]{1,100}:)(?!\d+(?:\s|$)|<redacted>)\S+",
    ),
)
