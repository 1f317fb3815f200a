"""The toolkit's config.toml: defaults byte for byte, settings, round trips, and texts that mean harm."""

from __future__ import annotations

import contextlib
import tomllib

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.toolkit_config import (
    ALLOW_LDCONFIG,
    BY_NAME,
    KEYS,
    MAX_BYTES,
    MAX_DOTS,
    OBSOLETE,
    HostDefaults,
    ToolkitConfig,
    dump_config,
    parse_config,
    set_values,
)
from kgpu.formats.toolkit_values import ValueKind, toml
from tests.budget import tries

DEFAULT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""
CLI = "nvidia-container-cli"
quick = tries(suppress_health_check=[HealthCheck.too_slow])
RUNTIME = "nvidia-container-runtime"


def test_the_default_file() -> None:
    assert dump_config(ToolkitConfig()) == DEFAULT
    assert dump_config(parse_config("")) == DEFAULT
    assert dump_config(parse_config(DEFAULT)) == DEFAULT


def test_defaults_of_a_host() -> None:
    text = dump_config(ToolkitConfig(host=HostDefaults(ldconfig="@/sbin/ldconfig.real", user="root:video")))
    assert 'ldconfig = "@/sbin/ldconfig.real"\n' in text
    assert '\nuser = "root:video"\n' in text


def test_values_have_their_type_and_default() -> None:
    config = parse_config('[nvidia-container-cli]\nroot = "/run/nvidia/driver"\nno-cgroups = true\n')
    assert config.text(f"{CLI}.root") == "/run/nvidia/driver"
    assert config.flag(f"{CLI}.no-cgroups") is True
    assert config.items(f"{RUNTIME}.modes.cdi.spec-dirs") == ("/etc/cdi", "/var/run/cdi")
    assert config.value(f"{CLI}.no-pivot") is None
    with pytest.raises(KeyError):
        config.value("nothing")


def test_a_sample_value_that_was_given_is_no_comment() -> None:
    text = f'[{CLI}]\nroot = "/run/nvidia/driver"\n'
    assert '\nroot = "/run/nvidia/driver"\n' in dump_config(parse_config(text))
    assert '\n#root = "/run/nvidia/driver"\n' in dump_config(parse_config(f'[{CLI}]\nroot = ""\n'))


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("disable-require", "disable-require", True),
        ("disable-require=0", "disable-require", False),
        (f"{RUNTIME}.mode=cdi", f"{RUNTIME}.mode", "cdi"),
        (f"{RUNTIME}.runtimes=crun:runc", f"{RUNTIME}.runtimes", ("crun", "runc")),
        (f"{RUNTIME}.runtimes=crun,runc", f"{RUNTIME}.runtimes", ("crun", "runc")),
        (f"{RUNTIME}.runtimes=", f"{RUNTIME}.runtimes", ()),
        (f"{CLI}.environment=A=b", f"{CLI}.environment", ("A=b",)),
        (f"{CLI}.no-pivot", f"{CLI}.no-pivot", True),
        ("features.ignore-imex-channel-requests", "features.ignore-imex-channel-requests", True),
        ("features.ignore-imex-channel-requests=false", "features.ignore-imex-channel-requests", False),
        ("swarm-resource=X=Y", "swarm-resource", "X=Y"),
    ],
)
def test_setting_a_value(setting: str, name: str, value: object) -> None:
    config = set_values(ToolkitConfig(), [setting])
    assert config.value(name) == value
    assert parse_config(dump_config(config)).value(name) == value


def test_a_feature_is_taken_back_with_nil() -> None:
    name = "features.ignore-imex-channel-requests"
    config = set_values(ToolkitConfig(), [f"{name}=true", f"{name}=nil"])
    assert config.value(name) is None
    assert dump_config(config) == DEFAULT


def test_another_list_separator() -> None:
    config = set_values(ToolkitConfig(), [f"{CLI}.environment=PATH=/a:/b;X=y"], separator=";")
    assert config.items(f"{CLI}.environment") == ("PATH=/a:/b", "X=y")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("nvidia-container-runtime.mod=cdi", f'did you mean "{RUNTIME}.mode"'),
        ("mode=cdi", "unknown key"),
        ("disable-require=perhaps", "neither true nor false"),
        (f"{RUNTIME}.mode", "no value"),
        (f"{RUNTIME}.mode=cdl", 'did you mean "cdi"'),
        (f"{RUNTIME}.mode=nil", "none of"),
        ("features.ignore-imex-channel-requests=maybe", "neither true nor false"),
        (f"{RUNTIME}.modes.cdi.default-kind=gpu", "not a CDI kind"),
        ("supported-driver-capabilities=compute,graphic", 'did you mean "graphics"'),
        (f"{CLI}.ldconfig=/sbin/ldconfig", "@ means the host's"),
        ("", "unknown key"),
        ("=", "unknown key"),
    ],
)
def test_a_bad_setting_is_explained(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_values(ToolkitConfig(), [setting])
    assert said in caught.value.what
    assert caught.value.expected
    assert caught.value.remedy


def test_the_containers_own_ldconfig_needs_its_feature() -> None:
    text = f'[{CLI}]\nldconfig = "/sbin/ldconfig"\n'
    with pytest.raises(ConfigError, match="run as root"):
        parse_config(text)
    assert parse_config(f"{text}[features]\nallow-ldconfig-from-container = true\n").flag(ALLOW_LDCONFIG)
    assert set_values(ToolkitConfig(), [ALLOW_LDCONFIG, f"{CLI}.ldconfig=/sbin/ldconfig"]).flag(ALLOW_LDCONFIG)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("disable-requir = true", 'did you mean "disable-require"'),
        ('disable-require = "true"', "a text is there, not true or false"),
        ("disable-require = 1", "a number is there"),
        ("disable-require = 1979-05-27", "a time is there"),
        (f"{CLI} = 3", "a table of settings and no value"),
        (f"[{CLI}.root]", "a table is there, not a text"),
        (f"[{RUNTIME}]\nruntimes = [1]", "not a list of texts"),
        (f'[{RUNTIME}]\nruntimes = "runc"', "not a list of texts"),
        (f'"{CLI}.root" = "/x"', "unknown key"),
        ('root = "/x"', f'did you mean "{CLI}.root"'),
        ("[features]\ngds-x = true", "unknown key"),
        ("a = 1\na = 2", "not TOML"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bad_file_is_explained(text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="/x/config.toml")
    assert said in caught.value.what
    assert "/x/config.toml" in caught.value.what


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("disable-require = 3\nwrong = 1\n" + "".join(f"x{n} = 1\n" for n in range(20)))
    assert "disable-require" in caught.value.what
    assert "wrong" in caught.value.what
    assert "and 12 more" in caught.value.what


def test_keys_of_earlier_versions_are_read_and_said() -> None:
    lines = "".join(f"{name} = true\n" for name in OBSOLETE)
    config = parse_config(lines)
    assert len(config.notes) == len(OBSOLETE)
    assert dump_config(config) == DEFAULT


# --- round trips ---

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
by_kind = {
    ValueKind.BOOL: st.booleans(),
    ValueKind.OPTIONAL_BOOL: st.booleans(),
    ValueKind.TEXT: texts,
    ValueKind.LIST: st.lists(texts, max_size=4).map(tuple),
    ValueKind.CDI_KIND: st.sampled_from(("nvidia.com/gpu", "vendor.com/class")),
}


def value_of(name: str):
    key = BY_NAME[name]
    if key.kind is ValueKind.CAPABILITIES:
        return st.lists(st.sampled_from(key.choices), min_size=1, max_size=3).map(",".join)
    if name == f"{CLI}.ldconfig":
        return texts.map("@{}".format)
    return st.sampled_from(key.choices) if key.choices else by_kind[key.kind]


configs = (
    st.lists(st.sampled_from(sorted(BY_NAME)), unique=True)
    .flatmap(lambda names: st.fixed_dictionaries({name: value_of(name) for name in names}))
    .map(ToolkitConfig)
)


@quick
@given(configs)
def test_what_is_written_reads_back_the_same(config: ToolkitConfig) -> None:
    text = dump_config(config)
    again = parse_config(text)
    for key in KEYS:
        value = config.value(key.name)
        # Off is how this one is when it is unset.
        assert again.value(key.name) == (None if key.name == f"{CLI}.no-pivot" and value is False else value)
    assert dump_config(again) == text
    assert tomllib.loads(text)


@quick
@given(configs)
def test_settings_of_a_command_line_are_as_those_of_a_file(config: ToolkitConfig) -> None:
    settings = []
    for name, value in config.given.items():
        items = value if isinstance(value, tuple) else ()
        if any("|" in item for item in items) or items == ("",) or (len(items) == 1 and "," in items[0]):
            continue
        text = "|".join(value) if isinstance(value, tuple) else toml(value) if isinstance(value, bool) else value
        settings.append((name, f"{name}={text}", value))
    changed = set_values(ToolkitConfig(), [setting for _, setting, _ in settings], separator="|")
    assert changed.given == {name: value for name, _, value in settings}


@quick
@given(st.one_of(texts, st.lists(texts, max_size=5).map(tuple), st.booleans()))
def test_any_value_is_written_as_toml(value) -> None:
    read = tomllib.loads(f"x = {toml(value)}")["x"]
    assert (tuple(read) if isinstance(read, list) else read) == value


@quick
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_no_text_does_more_than_refuse(text: str | bytes) -> None:
    with contextlib.suppress(ConfigError):
        config = parse_config(text)
        assert dump_config(parse_config(dump_config(config))) == dump_config(config)


# --- harm ---


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * (MAX_BYTES // 4) + " = 1",
        "\n".join(f"x{n}" + ".a" * MAX_DOTS + " = 1" for n in range(300)),
        "\n".join(f"[{'.'.join(['a'] * 90)}.b{n}]" for n in range(300)),
        "a = " + "[" * 4000,
        "a = " + "[\n" * 20_000,
        "a = " + "{a=" * 1300,
        'a = """' + "\n" * 60_000,
        "a = " + "9" * 4000,
        "a = [" + "1,\n" * 20_000 + "]",
        "x" * (MAX_BYTES + 1),
        "\0",
    ],
    ids=[
        "dotted",
        "many-dotted",
        "headers",
        "line-nest",
        "lines-nest",
        "tables",
        "string",
        "number",
        "list",
        "big",
        "nul",
    ],
)
def test_a_bomb_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert len(str(caught.value)) < 3000
