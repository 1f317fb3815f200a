"""Credentials as other programs write them: tokens by their own shape, files of clients, command lines, manifests."""

from __future__ import annotations

import base64
import json

import pytest

from kgpu.doctor import secrets

S = "q7Rk2VtN9xLw4HsB8mZp3Jy6"
H = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{S}\n{S}\n-----END RSA PRIVATE KEY-----\n"


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


LOGINS = packed(json.dumps({"auths": {"x": {"auth": packed(f"u:{S}")}}}))

OF_THEIR_OWN_SHAPE = (
    f"rk_live_{S}", f"whsec_{S}{S[:8]}", f"SG.{S[:22]}.{S}{S[:19]}", f"GOCSPX-{S}", f"1//0g{S}", f"pul-{H[:40]}",
    f"ATATT3xFfGF0{S}{S}", f"shpat_{H[:32]}", f"lin_api_{S}{S[:16]}", f"PMAK-{H[:24]}-{H[:34]}", f"AKCp5{S}{S}",
    f"LTAI5t{S[:18]}", f"secret_{S}{S[:19]}", f"abc8Q~{S}{S[:10]}", f"AGE-SECRET-KEY-1{(S * 3).upper()[:58]}",
    f"AQ{S}{S[:12]}==", f"key-{H[:32]}", f"SK{H[:32]}", f"123456789:AA{S}{S[:9]}", packed(PEM), LOGINS,
    f"H4sIAAAAAAAA{S}{S}",
)  # fmt: skip
WITH_A_NAME = tuple(
    line.replace("SECRET", S)
    for line in """
jdbc:oracle:thin:scott/SECRET@//db:1521/x
https://discord.com/api/webhooks/123456789012345678/SECRET
https://x.webhook.office.com/webhookb2/1-2/IncomingWebhook/SECRET/a
https://api.telegram.org/bot123456789:AASECRETSECRET/sendMessage
dd_app_key: SECRET
role_id=9f86d081-aaaa secret_id=884c7d65-bbbb-SECRET
kubectl create secret generic x --from-literal=foo=SECRET
define('DB_PASSWORD', 'SECRET');
os.putenv("API_KEY", "SECRET")
secret_key_base: SECRET
service_key: SECRET
routing_key: SECRET
PresharedKey = SECRETSECRET=
psk="SECRET"
bindpw SECRET
bindPW: SECRET
echo SECRET | docker login -u x --password-stdin r
requirepass SECRET
redis-server --requirepass SECRET
masterauth SECRET
pw: &pw SECRET
password: !!str SECRET
pass_phrase=SECRET
RABBITMQ_ERLANG_COOKIE=SECRET
<add key="ClearTextPassword" value="SECRET" />
X-JFrog-Art-Api: SECRET
snmpget -v2c -c SECRET h
ipmitool -U admin -P SECRET chassis
racadm -r h -u root -p SECRET
authorization=Bearer+SECRET
Passwort: SECRET
""".strip().splitlines()
)
OF_SEVERAL_LINES = (
    f"passwords:\n  - {S}\n  - b{S}\nother: x",
    f"kind: Secret\nmetadata:\n  name: x\ndata:\n  foo: {S}\n",
    f"apiVersion: v1\nkind: Secret\nstringData:\n  a: b\n  foo: {S}\n",
    f"apiVersion: v1\ndata:\n  a: b\n  foo: {S}\nkind: Secret\nmetadata:\n  name: x\n",
    json.dumps({"kind": "Secret", "metadata": "x", "data": {"foo": S}}),
    f"users:\n- name: a\n  user:\n    client-key-data: {packed(PEM)}\n",
)  # fmt: skip


@pytest.mark.parametrize("text", OF_THEIR_OWN_SHAPE)
def test_a_token_is_known_by_itself(text: str) -> None:
    for said in (text, f"using {text} now", f'{{"a":"{text}"}}', f"a={text}\nb"):
        assert text not in secrets.cleaned(said)
        assert text not in repr(secrets.words(["run", said]))


@pytest.mark.parametrize("text", [*WITH_A_NAME, *OF_SEVERAL_LINES])
def test_a_credential_is_known_by_what_stands_before_it(text: str) -> None:
    assert S not in secrets.cleaned(text)
    assert S not in json.dumps(secrets.data_of("ConfigMap", {"app.conf": text}))
    assert S not in secrets.cleaned(f"first\n{text}\nlast")


@pytest.mark.parametrize("text", WITH_A_NAME)
def test_so_it_is_in_a_log(text: str) -> None:
    assert S not in "\n".join(secrets.lines(["first", text, "last"]))


@pytest.mark.parametrize("text", [one for one in OF_SEVERAL_LINES if "kind: Secret" in one])
def test_so_is_a_secret_that_a_log_shows(text: str) -> None:
    shown = secrets.lines(["first", *text.splitlines(), "last: x", "data:", "  stays: x"])
    assert S not in "\n".join(shown)
    assert (shown[0], shown[-3]) == ("first", "last: x")


def test_the_data_of_others_in_a_log_stay() -> None:
    text = ["kind: ConfigMap", "data:", "  a: b", "kind: SecretStore", "data:", "  c: d"]
    assert list(secrets.lines(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "routing_key: gpu.events service_key: team-a app-key: name secret_id: my-secret sharedKeys: 3",
        "the pass-phrase agent; bind pw later; master auth done",
        "kind: SecretProviderClass\ndata:\n  a: b",
        "kind: ConfigMap\ndata:\n  a: b",
        "key-value pairs of SK hynix; aq6 pul-x lin_api shpat 12:AA 2026:AAA",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "GPU-9f86d081-884c-7d65-9a2f-eaa0c55ad015 uid 9f86d081-884c-7d65-9a2f-eaa0c55ad015",
        "nvcr.io/nvidia/cuda@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        'define("MAX_TOKENS") setenv("PATH", "/bin") key="x" value="y"',
        "echo hello world | tee log; echo done | grep kinit2",
        "https://webhook.example.com/hooks/1 snmpd -f",
        "passwords: []\nx: 1",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert secrets.cleaned(text) == text
