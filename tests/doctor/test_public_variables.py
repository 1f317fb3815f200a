"""Which variables' values are shown: those on the list, by their whole names, and each one that a rule reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kgpu.doctor import public_variables, secrets
from kgpu.doctor.secret_names import sounds_secret
from kgpu.formats import names

RULES = Path(public_variables.__file__).parent / "rules"
READ = re.compile(r"(?:\.env\.get\(|_toolkit_env\(pod, |cite_env\([^()]+, )\"([A-Z][A-Z0-9_]+)\"")
CONSTANT = re.compile(r"^_\w+: Final = \"([A-Z][A-Z0-9]*_[A-Z0-9_]+)\"", re.MULTILINE)

NAMED = re.compile(r"\bnames\.(ENV_\w+)")


@pytest.mark.parametrize(
    "name",
    [
        "MASTER_CREDS", "DEFAULT_ADMIN_PASSCODE", "TF_VAR_LOGIN", "TF_VAR_db", "POD_X", "NVIDIA_X", "NCCL_X", "LOCAL_X",
        "CONFIG_TEXT", "NODE_OPTIONS", "LOG_SINK", "KUBERNETES_X", "nccl_debug", "DRIVER_DSN", "HTTP_PROXY", "XNCCL_DEBUG",
    ],
)  # fmt: skip
def test_a_name_that_only_begins_like_a_known_one_shows_nothing(name: str) -> None:
    assert secrets.env_value(name, "hunter2x9Zq") == secrets.HIDDEN


@pytest.mark.parametrize("name", sorted(public_variables.NAMES))
def test_known_names_show_their_values(name: str) -> None:
    assert secrets.env_value(name, "all") == "all"
    assert not sounds_secret(name), "a list of switches and numbers has no credential's name"


def test_what_rules_read_is_on_the_list() -> None:
    texts = [path.read_text() for path in RULES.rglob("*.py")]
    read = {name for text in texts for name in READ.findall(text)}
    read |= {name for text in texts if ".env" in text for name in CONSTANT.findall(text)}
    read |= {getattr(names, name) for text in texts for name in NAMED.findall(text)}
    assert {"CONTAINERD_CONFIG", "DP_DISABLE_HEALTHCHECKS"} <= read
    assert sorted(read - public_variables.NAMES) == []


def test_a_known_variable_with_a_credential_in_its_value_shows_the_rest() -> None:
    assert secrets.env_value("RUNTIME_ARGS", "--token=hunter2x9Zq") == "--token=<redacted>"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("adminPass", True), ("db-creds", True), ("dbCreds", True), ("DEFAULT_ADMIN_PASSCODE", True), ("TF_VAR_LOGIN", True),
        ("htpasswd", True), ("accountKey", True), ("connectionString", True), ("x.pgpass", True), ("basicAuth", True),
        ("passDeviceSpecs", False), ("topologyKey", False), ("loginServer", False), ("--login", False), ("bypass", False),
        ("tokenizer", False), ("author", False), ("passthrough", False), ("compass-url", False), ("creditLimit", False),
    ],
)  # fmt: skip
def test_names_are_read_word_by_word(name: str, secret: bool) -> None:
    assert sounds_secret(name) is secret
