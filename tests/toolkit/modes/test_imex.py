"""Mode imex: a device per channel, by number, by name, or all; limits, and channels that are not there."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError, HostError
from kgpu.toolkit.run import IncompleteError
from tests.host.tree import touch
from tests.toolkit.generation import Never, edits, make, names, node_paths

FOLDER = "/dev/nvidia-caps-imex-channels"


@pytest.fixture
def root(tmp_path):
    touch(tmp_path, *(f"{FOLDER}/channel{number}" for number in (0, 2, 10)), f"{FOLDER}/other")
    return tmp_path


def generate(root, *ids: str, **options):
    return make(root, mode="imex", read=Never(), device_ids=ids, **options)


def test_every_channel_and_their_union(root) -> None:
    spec = generate(root).spec
    assert spec.kind == "nvidia.com/imex-channel"
    assert names(spec) == ["0", "2", "10", "all"]
    assert node_paths(edits(spec, "10")) == [f"{FOLDER}/channel10"]
    assert len(edits(spec, "all").device_nodes) == 3


@pytest.mark.parametrize("words", [("0", "10"), ("channel0", "channel10"), ("0,10",), ("10", "0", "channel10")])
def test_channels_by_number_or_name(root, words: tuple[str, ...]) -> None:
    assert names(generate(root, *words, all_device=False).spec) == ["0", "10"]


def test_a_channel_that_is_not_there_is_an_error_unless_allowed(root) -> None:
    with pytest.raises(IncompleteError, match="channel 3 is left out"):
        generate(root, "0", "3", allow_incomplete=False)
    generated = generate(root, "0", "3", allow_incomplete=True, all_device=False)
    assert names(generated.spec) == ["0"]
    assert any("channel 3 is left out" in note for note in generated.notes)


def test_nothing_left_is_an_error_even_when_gaps_are_allowed(root, tmp_path_factory) -> None:
    with pytest.raises(HostError, match="channel 3 is not under"):
        generate(root, "3")
    with pytest.raises(HostError, match="no channel is under"):
        generate(tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("word", ["-1", "x", "1048576", "99999999999", "none", "channel", "0x1", "٣"])
def test_what_is_no_channel_is_refused(root, word: str) -> None:
    with pytest.raises(ConfigError, match="is not an IMEX channel"):
        generate(root, word)


def test_the_largest_number_is_the_drivers(root) -> None:
    touch(root, f"{FOLDER}/channel1048575")
    assert names(generate(root, "1048575", all_device=False).spec) == ["1048575"]
