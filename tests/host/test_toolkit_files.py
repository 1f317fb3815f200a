"""Reading files of others within bounds, and where the toolkit's config.toml is and what its defaults are."""

from __future__ import annotations

import os

import pytest

from kgpu.base.errors import ConfigError, HostError
from kgpu.formats.toolkit_config import DEFAULT_PATH, MAX_BYTES, HostDefaults, ToolkitConfig
from kgpu.host.bounded import read_regular
from kgpu.host.toolkit_files import config_path, host_defaults, read_config


def test_a_file_is_read_up_to_its_limit(tmp_path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    text, about = read_regular(file, 5, what="a text")
    assert (text, about.st_size) == (b"12345", 5)
    with pytest.raises(HostError, match="more than 4 bytes"):
        read_regular(file, 4, what="a text")


def test_a_file_that_the_kernel_makes_has_no_size_and_is_read() -> None:
    text, about = read_regular("/proc/self/status", 1 << 16, what="a text")
    assert about.st_size == 0
    assert b"Pid:" in text


@pytest.mark.parametrize("path", ["/dev/zero", "/proc", "x\0y", "/dev/null/x", "/nowhere/at/all"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(HostError) as caught:
        read_regular(path, 10, what="a text")
    assert caught.value.remedy


def test_a_pipe_does_not_block(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HostError, match="no regular file"):
        read_regular(tmp_path / "pipe", 10, what="a text")


def test_no_descriptor_stays_open(tmp_path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, "/dev/zero", tmp_path / "none"):
        with pytest.raises(HostError):
            read_regular(path, 10, what="a text")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_file_that_counts(tmp_path) -> None:
    assert config_path({}) == DEFAULT_PATH
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) == DEFAULT_PATH
    own = tmp_path / "nvidia-container-runtime/config.toml"
    own.parent.mkdir()
    own.write_text("")
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) == str(own)
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path), "NVIDIA_CTK_CONFIG_FILE_PATH": "/x"}) == "/x"


@pytest.mark.parametrize(
    ("release", "real", "expected"),
    [
        ("ID=debian\n", True, HostDefaults("@/sbin/ldconfig.real", "")),
        ("ID=rhel\nVERSION=suse\n", False, HostDefaults("@/sbin/ldconfig", "")),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', False, HostDefaults("@/sbin/ldconfig", "root:video")),
        ('ID="sles"\nID_LIKE="suse"\n', False, HostDefaults("@/sbin/ldconfig", "root:video")),
        (None, False, HostDefaults("@/sbin/ldconfig", "")),
    ],
)
def test_defaults_follow_the_system(tmp_path, release: str | None, real: bool, expected: HostDefaults) -> None:
    for name in ("etc", "sbin"):
        (tmp_path / name).mkdir()
    if release is not None:
        (tmp_path / "etc/os-release").write_text(release)
    if real:
        (tmp_path / "sbin/ldconfig.real").write_text("")
    assert host_defaults(tmp_path) == expected


def test_a_file_that_is_not_there_means_defaults(tmp_path) -> None:
    host = HostDefaults()
    assert read_config(str(tmp_path / "none/config.toml"), host=host) == ToolkitConfig(host=host)
    file = tmp_path / "config.toml"
    file.write_text("disable-require = true\n")
    assert read_config(str(file)).flag("disable-require")
    assert read_config(str(file / "below")) == ToolkitConfig(host=host_defaults())


@pytest.mark.parametrize("content", ["x = ", "wrong = 1\n", "#" * (MAX_BYTES + 1)])
def test_a_bad_file_is_an_error_with_its_name(tmp_path, content: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(content)
    with pytest.raises((ConfigError, HostError)) as caught:
        read_config(str(file))
    assert str(file) in caught.value.what
