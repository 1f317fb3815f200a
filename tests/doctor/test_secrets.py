"""No secret comes out: in no form of output, in no archive, wherever in a cluster or on a host it was planted."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.doctor import archive, secrets
from kgpu.doctor.host_facts import File, HostFacts, encode
from kgpu.doctor.kinds import Log
from kgpu.doctor.objects import lean
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_json, as_sarif, as_text, as_yaml
from kgpu.doctor.rules import all_rules
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import host, live
from kgpu.doctor.sources.files import lines, read
from kgpu.host.engines.paths import MountedPaths
from kgpu.kube.fake import FakeApi
from tests.budget import count, sample, tries
from tests.doctor import forms
from tests.doctor.planted import cluster_with, log_with, secrets_of
from tests.doctor.test_live import RESOURCES

SEEDS = st.text("abcdefghkmnpqrstuvwxyzABCDEFGHKMNPQRSTUVWXYZ23456789", min_size=6, max_size=16)


def said_of(snapshot: Snapshot, folder: Path) -> str:
    """Everything that ever leaves: each form of output, and the unpacked archive."""
    report = diagnose(snapshot, strict=True)
    forms = [as_text(report), as_json(report), as_yaml(report), as_sarif(report, all_rules())]
    archive.write(snapshot, str(folder / "a.tar.gz"))
    return "\n".join(forms) + gzip.decompress((folder / "a.tar.gz").read_bytes()).decode("utf-8", "replace")


def leaks(text: str, found: dict[str, str]) -> list[str]:
    return [place for place, secret in found.items() if secret in text]


@tries(25)
@given(SEEDS)
def test_planted_secrets_never_come_out(tmp_path_factory: pytest.TempPathFactory, seed: str) -> None:
    found = secrets_of(seed)
    snapshot = Snapshot.of(cluster_with(found))
    snapshot.add_log(Log(namespace="ml", pod="train", container="main", lines=lines(log_with(found))))
    text = said_of(snapshot, tmp_path_factory.mktemp("said"))
    assert leaks(text, found) == []
    assert "HF_TOKEN" in text, "names of variables stay"


# Letters, digits and both; what a pattern takes for a number, a word or a code must go as well.
CREDENTIALS = ("Zq7xK2mPw9Rt4vBn", "Zq7222222x2mPw9Rt4", "3f9a0c1e77d24b6f8a5510c2d3e4f5a6", "ZQ7ABCDEFX2MPW9RT4")


def said_by(secret: str, first: int, step: int) -> list[dict[str, Any]]:
    """A cluster in which each field has another form; which one depends on the two numbers."""
    numbers = itertools.count(first, step)
    return forms.cluster_with(lambda: forms.TEXTS[next(numbers) % len(forms.TEXTS)].format(s=secret), secret)


def around(secret: str, text: str) -> str:
    """Where a credential has come out; "" where it has not."""
    at = text.find(secret)
    return text[max(at - 200, 0) : at + 100] if at >= 0 else ""


@pytest.mark.parametrize("step", range(0, 18, count(5, 1)))
def test_no_form_of_a_credential_comes_out_of_any_field(step: int) -> None:
    """Every form in every field, beside forms that are ``step`` further on: all that rules and archives are made from."""
    secret = CREDENTIALS[step % len(CREDENTIALS)]
    for first in range(len(forms.TEXTS)):
        for one in said_by(secret, first, step):
            if one["kind"] not in ("PodLog", "HostFacts"):  # the snapshot cleans these as it takes them
                found = around(secret, json.dumps(lean(one), ensure_ascii=False))
                assert not found, f"form {first} of a {one['kind']}, step {step}: {found}"


@pytest.mark.parametrize(("first", "step"), [(number, number % 17 + 1) for number in range(0, len(forms.TEXTS), 8)])
def test_nor_of_any_output_or_archive(tmp_path: Path, first: int, step: int) -> None:
    for secret in CREDENTIALS[:2]:
        objects = said_by(secret, first, step)
        text = said_of(Snapshot.of(copy.deepcopy(objects)), tmp_path)
        assert around(secret, text) == ""
        assert "CrashLoopBackOff" in text
        raw = tmp_path / "all.json"
        raw.write_text(json.dumps({"kind": "List", "items": objects}))
        assert around(secret, said_of(read(str(raw)), tmp_path)) == ""


@pytest.mark.parametrize("first", forms.TEXTS)
def test_no_form_takes_the_name_of_the_next_one_away(first: str) -> None:
    """The end of one may look like the other's name's value, so that the name goes and the value stays."""
    secret = CREDENTIALS[0]
    before = first.format(s=secret)
    for form in sample(forms.TEXTS, first):
        after = form.format(s=secret)
        for found in (
            secrets.cleaned(f"{before} {after}"),
            secrets.cleaned(f"{before}\n{after}"),
            secrets.cleaned(json.dumps({"a": before, "b": after})),
            repr(secrets.words([before, *after.split()])),
            repr(secrets.words(after.split(), before.split())),
        ):
            assert secret not in found, (before, after)


@pytest.mark.parametrize("form", forms.TEXTS)
def test_each_form_is_known_in_a_sentence_in_a_shells_line_and_word_by_word(form: str) -> None:
    secret = "Zq7xK2mPw9Rt4vBn"
    text = form.format(s=secret)
    for said in (text, f"2026-01-01 INFO starting: {text} and so on", f'msg="{text}"'):
        assert secret not in secrets.cleaned(said)
        assert secrets.cleaned(secrets.cleaned(said)) == secrets.cleaned(said)
    assert secret not in repr(secrets.words(["sh", "-c", text]))
    if text[0] not in "[{'\"":
        assert secret not in repr(secrets.words(text.split()))
        assert secret not in repr(secrets.words(text.split()[1:], text.split()[:1]))


@pytest.mark.parametrize(
    "text",
    [
        'MountVolume.SetUp failed for volume "hf-token" : secret "hf-token2" not found',
        "couldn't find key api_key_2 in Secret ml/y",
        'secret "ngc-secret-2" not found',
        "mkdir -p /data/model2024 && mkdir -p run2024dir && ssh -p 2222 host1",
        "docker run -p 8080:80 image1",
        "kubectl patch clusterpolicy cluster-policy --type merge -p '{\"spec\":{}}'",
        "crictl pull nvcr.io/nvidia/cuda:12.1.0-base-ubuntu22.04",
        "GPU-3b1f1c1e-0000-1111-2222-333344445555 MIG-3b1f1c1e-0000-1111-2222-333344445555",
        "nvidia.com/mig-1g.10gb=2 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "password authentication failed for user app1",
        "max token len4096, tokens 128k, tokenizer v2",
        "node.kubernetes.io/not-ready key: nvidia.com/gpu, operator: Exists",
        "failed to read token /var/run/secrets/kubernetes.io/serviceaccount/token1",
        "driver 570.133.20, CUDA 12.8, containerd://2.1.4, v1.35.1+k3s1",
        "vllm serve --max-tokens 4096 --max-num-batched-tokens=8192 --tokenizer meta-llama/Llama-3 --tokenizer-mode auto",
        "serve --key-file /etc/k1 --token_file ./tokens/t2",
        "python train.py -p batch32x4",
        "cp -p file123abc /x; ssh -p 2222abc host",
        "docker://nvcr.io:5000/nvidia/driver:570@sha256:0011 docker-pullable://driver:570@sha256:0011",
        "http://[::1]:8080/a@b http://proxy:3128/mail@example",
        "docker run -u nginx:101 cuda",
        "docker login registry -p 8080; docker run -p 8080 image1",
        "references non-existent secret key: HF_TOKEN",
        "- name: MAX_TOKENS\n  value: 4096x",
        "name: TOKENIZERS_PARALLELISM, value: false",
        "name: hf-token-reader value 3",
        "stop_tokens: [128001, 128009] max_tokens: [4096]",
        "token: |",
        "reset TOKEN counters, set -o pipefail, set SECRET",
        "mc ls m/bucket && git config host add",
        "loading token embeddings/layer1 of models/Llama3-70B",
        "proxy=proxy.example.com:3128 dsn: host:5432 mailto:proxy:x",
        "waits for key -> value pairs; tokens -> ids",
        "echo user1: done | tee log",
        "hvs.short gsk_short r8_short dapi1 tskey-x",
        "bash --login -c start; login: bob; az acr login --loginServer r1.io; invalid credentials",
        "passDeviceSpecs: true bypass=yes2 passthrough: mode1 compass: north12 authorName: bob2 author=x1",
        "echo $1$2$3 $HOME/$6 {sha} {SHA} costs $5 and $6.50",
    ],
)
def test_evidence_stays_readable(text: str) -> None:
    assert secrets.cleaned(text) == text
    assert secrets.words(["sh", "-c", text]) == ["sh", "-c", text]


async def test_nor_from_a_live_cluster_nor_from_an_archive_of_others(tmp_path: Path) -> None:
    found = secrets_of("Live1234")
    api = FakeApi()
    for one in cluster_with(found):
        if one["kind"] in RESOURCES:
            api.put(RESOURCES[one["kind"]], one)

    class Logs:
        async def logs(self, *_: object, **__: object) -> bytes:
            return log_with(found)

    snapshot = await live.collect(api, logs=Logs())
    assert leaks(said_of(snapshot, tmp_path), found) == []
    assert not snapshot.kinds.get("Secret"), "Secrets are not even asked for"
    # An archive that somebody else made, without cleaning anything.
    import io

    with tarfile.open(tmp_path / "raw.tar.gz", "w:gz") as file:
        for name, data in (
            ("objects/all.json", json.dumps({"kind": "List", "items": cluster_with(found)}).encode()),
            ("logs/ml/train/main.log", log_with(found)),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    assert leaks(said_of(read(str(tmp_path / "raw.tar.gz")), tmp_path), found) == []


def test_nor_from_a_hosts_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text(
        'version = 2\n[plugins."x".registry.configs."r".auth]\n  username = "u"\n  password = "Zq-hunter2-toml"\n'
    )
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text("root=/dev/sda1 luks.password=Zq-hunter2-cmd\n")
    facts = host.gather(MountedPaths.at(str(root)), node="gpu-1")
    text = said_of(Snapshot.of([encode(facts)]), tmp_path)
    assert 'username = \\"u\\"' in text
    assert "Zq-hunter2" not in text


def test_host_facts_of_another_version_are_cleaned_too(tmp_path: Path) -> None:
    facts = HostFacts(
        node="gpu-1",
        files={"/etc/docker/daemon.json": File(text='{"token": "Zq-hunter2-file"}')},
        command_line="x password=Zq-hunter2-cmd",
        kernel_log=("NVRM: token=Zq-hunter2-log",),
    )
    assert "Zq-hunter2" not in said_of(Snapshot.of([encode(facts)]), tmp_path)


@tries(200)
@given(st.text(max_size=200))
def test_cleaning_is_total_and_settles(text: str) -> None:
    once = secrets.cleaned(text)
    assert secrets.cleaned(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "NVRM: Xid (PCI:0000:03:00): 79, pid=1, GPU has fallen off the bus.",
        "unknown device: nvidia.com/gpu=GPU-3b1f1c1e-0000-1111-2222-333344445555",
        "Failed to pull image nvcr.io/nvidia/driver:570.86.15-ubuntu24.04",
        "secretName: pull-me is not there",
        "unexpected status from GET request to https://auth.example.com/token: 401 Unauthorized",
        'Post "https://auth.example.com/token": dial tcp: lookup auth.example.com: no such host',
        "failed to fetch anonymous token: unexpected status from HEAD request",
        "pull access denied, may require authorization: server message: insufficient_scope: authorization failed",
        "create secret docker-registry ngc --docker-username='$oauthtoken' --docker-password=\"$NGC_API_KEY\"",
        "docker-pullable://nvidia-driver@sha256:0011",
        "--pass-device-specs true --token-file --verbose",
        "docker run -u 1000:1000 cuda",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert secrets.cleaned(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "mysql --password {} -h db",
        "huggingface-cli login --token {}",
        "wandb --wandb-key {}",
        "x --pass={}",
        "Authorization: token {}",
        '{{"Authorization": "Basic {}"}}',
        "git clone https://{}@example.com/x",
        "https://x.example.com/c?sv=2020&sig={}",
        "GET https://x/y?X-Amz-Signature={}&a=b",
        "https://hooks.slack.com/services/T00/B00/{}",
        '{{"user": "a", "pass": "{}"}}',
        r"log: {{\"auths\": {{\"nvcr.io\": {{\"auth\": \"{}\"}}}}}}",
        "{{'password': '{}'}}",
        "db:\n  pass: {}\n",
        "DB_PASS={}",
        "pwd: {}",
        "curl -u bob:{} https://x",
    ],
)
def test_what_is_a_secret_in_a_text_goes(text: str) -> None:
    once = secrets.cleaned(text.format("hunter2x9Zq"))
    assert "hunter2x9Zq" not in once
    assert secrets.HIDDEN in once
    assert secrets.cleaned(once) == once


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('password = "correct horse battery" x', 'password = "<redacted>" x'),
        ('password = "hun,ter;2", user', 'password = "<redacted>", user'),
        (r'{"password": "a\"bcdefgh", "b": 1}', '{"password": "<redacted>", "b": 1}'),
        (r'"{\"password\": \"a \\\"b\", \"c\": 1}"', r'"{\"password\": \"<redacted>\", \"c\": 1}"'),
        ("password: 'it''s \"hunter2\"' x", "password: '<redacted>' x"),
        ('password="cut off', 'password="<redacted>'),
        ("password == hunter2", "password == <redacted>"),
        ('password => "hunter2"', 'password => "<redacted>"'),
        ('passwd "hunter2" x', 'passwd "<redacted>" x'),
        ("<password>hunt er2</password>", "<password><redacted></password>"),
        ("machine x login bob password hunter2", "machine x login bob password <redacted>"),
        ("http://user:p@ss@word/@proxy x", "http://user:<redacted>@proxy x"),
        ("http://user:pass/word@proxy:3128 x", "http://user:<redacted>@proxy:3128 x"),
        ('{"a":"http://u:p@h","mail":"x@y"}', '{"a":"http://u:<redacted>@h","mail":"x@y"}'),
        ("Authorization: hunter2abcdef", "Authorization: <redacted>"),
        ("bearer: abcdefghijklmnopqrst", "bearer: <redacted>"),
        ("curl -uadmin:hunter2 x", "curl -uadmin:<redacted> x"),
        ("curl -u admin:12345 x", "curl -u admin:<redacted> x"),
        ("curl --user=admin:12345 x", "curl --user=admin:<redacted> x"),
        ("HF_KEY=abcdef123", "HF_KEY=<redacted>"),
        ("--max-tokens hunter2", "--max-tokens <redacted>"),
        ("--token-file hunter2", "--token-file <redacted>"),
        ("redis-cli -a 123456 ping", "redis-cli -a <redacted> ping"),
        ("mysql -u root -p123456 db", "mysql -u root -p<redacted> db"),
        ("sshpass -p 123456 ssh -p 22 h", "sshpass -p <redacted> ssh -p <redacted> h"),
        ("smbclient //h/s -U u%123456", "smbclient //h/s -U u%<redacted>"),
        ("password: |\n  hunter2 and more\nuser: b", "password: |\n  <redacted>\nuser: b"),
        ("token: >-\n    hunter2", "token: >-\n    <redacted>"),
        ("- name: HF_TOKEN\n  value: hunter2\n- name: X\n", "- name: HF_TOKEN\n  value: <redacted>\n- name: X\n"),
        ("api_key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY x", "api_key <redacted> x"),
        ("Authorization: hunter2a\npassword: hunter2b", "Authorization: <redacted>\n<redacted> <redacted>"),
        ('Cookie: a=hunter2, password "hunter2"', 'Cookie: <redacted>"<redacted>"'),
        ("token: token: hunter2abc", "token: <redacted> <redacted>"),
    ],
)
def test_a_credential_goes_as_a_whole_and_nothing_else(text: str, shown: str) -> None:
    assert secrets.cleaned(text) == shown
    assert secrets.cleaned(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 4096",
        "--max-tokens=4096",
        "--tokenizer a/b",
        "--tokenizer=b",
        "--key-file /etc/k",
        "--key-file=/k",
    ],
)
def test_flags_that_only_sound_like_a_credentials_keep_their_values(text: str) -> None:
    assert secrets.words(["serve", *text.split()]) == ["serve", *text.split()]


@pytest.mark.parametrize("name", ["DOCKER_PASS", "MASTER_PASS", "TF_VAR_PW", "POD_PWD", "DEFAULT_SALT", "PASS"])
def test_variables_named_for_a_password_are_hidden(name: str) -> None:
    assert secrets.env_value(name, "hunter2x9Zq") == secrets.HIDDEN


def test_variables_that_only_sound_like_it_stay() -> None:
    assert secrets.env_value("PASS_DEVICE_SPECS", "true") == "true"


def test_words_after_flags_for_users_and_keys_are_hidden() -> None:
    given = ["curl", "-u", "bob:hunter2x9Zq", "--wandb-key", "hunter2x9Zq", "--pw", "hunter2x9Zq", "-u", "0:0"]
    assert secrets.words(given) == [
        "curl", "-u", "bob:<redacted>", "--wandb-key", "<redacted>", "--pw", "<redacted>", "-u", "0:0",
    ]  # fmt: skip


def test_a_word_that_ends_in_a_credential_takes_no_name_from_the_next_one() -> None:
    given = ["-c", "curl -H Authorization: hunter2x9Zq", "Authorization: hunter2x9Zq", "Authorization:", "hunter2x9Zq"]
    assert "hunter2x9Zq" not in repr(secrets.words(given))
    assert "hunter2x9Zq" not in repr(secrets.words(given[2:], given[:2]))


@pytest.mark.parametrize(
    "word", ["--password hunter2x9Zq=", "-p https://u:hunter2x9Zq@h/?token=x", "--pw='a=hunter2x9Zq'"]
)
def test_a_word_that_is_a_whole_command_shows_nothing_before_its_first_equals_sign(word: str) -> None:
    assert "hunter2x9Zq" not in repr(secrets.words(["sh", "-c", word]))
    assert "hunter2x9Zq" not in repr(secrets.words([word]))


def test_a_credential_that_lies_across_words_goes_and_the_others_stay() -> None:
    assert secrets.words(["run", "apiKeys:", '["a1",', '"hunter2x9Zq"]', "--gpus=8"]) == [
        "run", "apiKeys:", "[<redacted>", "<redacted>]", "--gpus=8",
    ]  # fmt: skip
    assert secrets.words(["a\x1fb", "--password", "hunter2x9Zq", 3, "c"]) == [
        "a\x1fb",
        "--password",
        "<redacted>",
        3,
        "c",
    ]


def test_lists_and_rows_of_names_and_values_are_read_by_their_names() -> None:
    spec = {
        "apiKeys": ["hunter2x9Zq"], "authTokens": ["hunter2x9Zq", 3], "password": {"value": "hunter2x9Zq", "valueFrom": "r"},
        "extraEnv": [{"name": "HF_TOKEN", "value": "hunter2x9Zq"}, {"name": "X", "value": "stays"}],
        "headers": [{"name": "Authorization", "value": "hunter2x9Zq"}], "more": {"authorization": "hunter2x9Zq"},
        "imagePullSecrets": ["p"], "secretKeyRef": {"name": "token", "key": "k"}, "tokens": [1, 2],
    }  # fmt: skip
    found = lean({"kind": "Cluster", "metadata": {"name": "c"}, "spec": spec})["spec"]
    assert "hunter2x9Zq" not in repr(found)
    assert found["extraEnv"][1] == {"name": "X", "value": "stays"}
    assert found["password"]["valueFrom"] == "r"
    for key in ("imagePullSecrets", "secretKeyRef", "tokens"):
        assert found[key] == spec[key]


def test_fields_named_for_a_secret_are_hidden_and_references_stay() -> None:
    spec = {
        "auth": {"password": "hunter2x9Zq", "token": "hunter2x9Zq", "passwordPlain": "hunter2x9Zq", "token_ttl": 3},
        "secretName": "s", "tokenSecretRef": "r", "secretKeyRef": {"name": "n", "key": "k"}, "imagePullSecrets": ["p"],
        "httpGet": {"httpHeaders": [{"name": "X-Mine", "value": "hunter2x9Zq"}]},
    }  # fmt: skip
    found = lean({"kind": "Cluster", "metadata": {"name": "c"}, "secret": "hunter2x9Zq", "spec": spec})
    assert "hunter2x9Zq" not in repr(found)
    for key in ("secretName", "tokenSecretRef", "secretKeyRef", "imagePullSecrets"):
        assert found["spec"][key] == spec[key]
    assert found["spec"]["auth"]["token_ttl"] == 3
    assert found["spec"]["httpGet"]["httpHeaders"][0]["name"] == "X-Mine"


@pytest.mark.parametrize("kind", ["Job", "Pod", "Node"])
def test_of_another_group_s_kind_of_a_known_name_every_text_is_cleaned(kind: str) -> None:
    tasks = [{"template": {"spec": {"containers": [{"env": [{"name": "HF_TOKEN", "value": "hunter2x9Zq"}]}]}}}]
    spec = {"tasks": tasks, "password": "hunter2x9Zq"}
    found = lean({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": kind, "metadata": {"name": "j"}, "spec": spec})
    assert "hunter2x9Zq" not in repr(found)


def test_probes_hooks_drivers_of_volumes_and_annotations_of_templates_are_left_out() -> None:
    run = {"exec": {"command": ["sh", "-c", "x hunter2x9Zq"]}}
    notes = {
        "kubectl.kubernetes.io/last-applied-configuration": "hunter2x9Zq",
        "a/api-token": "hunter2x9Zq",
        "a/b": "password=hunter2x9Zq",
        "a/c": "stays",
    }
    get = {"httpGet": {"httpHeaders": [{"name": "X", "value": "hunter2x9Zq"}]}}
    pod = {
        "containers": [
            {
                "name": "m", "image": "i", "livenessProbe": get, "readinessProbe": run, "startupProbe": get,
                "lifecycle": {"postStart": run},
            }
        ],
        "volumes": [
            {"name": "c", "csi": {"driver": "d", "volumeAttributes": {"x": "hunter2x9Zq"}}},
            {"name": "f", "flexVolume": {"driver": "d", "options": {"x": "hunter2x9Zq"}}},
        ],
    }  # fmt: skip
    template = {"metadata": {"annotations": notes}, "spec": pod}
    for kind, spec in (
        ("Deployment", {"template": template}),
        ("CronJob", {"jobTemplate": {"metadata": {"annotations": notes}, "spec": {"template": template}}}),
    ):
        found = lean({"kind": kind, "metadata": {"name": "d", "annotations": notes}, "spec": spec})
        assert "hunter2x9Zq" not in repr(found)
        assert repr(found).count("'stays'") >= 2
        assert "'driver': 'd'" in repr(found)


@pytest.mark.parametrize("name", ["- name: HF_TOKEN", '    "name": "DB_PASSWORD",', "password: |", "apiKey: >-"])
def test_a_value_on_the_line_after_its_name_goes(name: str) -> None:
    value = "value: hunter2x9Zq" if "name" in name else "  hunter2x9Zq"
    found = secrets.lines(["start", name, value, "value: stays"])
    assert found == ("start", name, value.replace("hunter2x9Zq", "<redacted>"), "value: stays")
    assert secrets.lines(found) == found
    assert secrets.lines(["invalid token", "2026-01-01T10:00:00Z started", "name: HF_TOKEN", "2026 INFO done"]) == (
        "invalid token", "2026-01-01T10:00:00Z started", "name: HF_TOKEN", "2026 INFO done",
    )  # fmt: skip


def test_lines_of_a_log_in_an_object_are_cleaned(tmp_path: Path) -> None:
    log = {"kind": "PodLog", "metadata": {"name": "p", "namespace": "n"}, "lines": ["a", "password=hunter2x9Zq"]}
    snapshot = Snapshot.of([log])
    assert snapshot.logs["n", "p"][0].lines == ("a", "password=<redacted>")


@pytest.mark.parametrize(
    "piece", ["-", "-key", "--token", "pass", "auth-", "token.", "://", "://a:", "?sig", "authorization: ", "-u ", "\\", " ",
              "token=\\", "--key ", "eyJ", "pwd ", "a.", "pass=$A",
              "redis-cli -a ", "-p ", "login ", "cookie: a=", "token is ", "AIza", "-----BEGIN PRIVATE KEY-----", "hf_",
              "a-", "a.b.", "--a", "eyJ-", "eyJ.", "://a:b@", 'token="', 'token=\\"', "password '", "<a", "bearer ",
              ":\\/\\/a:", "a:@tcp(", "proxy=a:", "name:token ", "name: a_token, value: ", " set A_KEY", "echo a:",
              "tokens: [", "apikeys=[ ", "password: |\n", "token:|\\n", "token%3d", "mc alias set a ", "--a.b", "token A1/",
              "token: token: ", "token->", "pass\x1f", "secretkeys", "hvs.", "$apr1$", "$2y$10$", "{sha}", "aPass", "creds: ", "b_login=",
              "connectionstring", "--a-creds "],
)  # fmt: skip
def test_hostile_texts_are_cleaned_in_linear_time(piece: str) -> None:
    text = piece * (100_000 // len(piece)) + "token"
    cleaned = secrets.cleaned(text)
    assert secrets.cleaned(cleaned) == cleaned


@pytest.mark.parametrize("piece", ["a-", "a.b.", "--a"])
def test_a_line_of_a_megabyte_ends(piece: str) -> None:
    assert secrets.cleaned(piece * (1_000_000 // len(piece)) + "=token=hunter2").endswith("token=<redacted>")
