"""Feature files: lines, directives, expiry, and files that nobody should read."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.discovery.features.host_tree import HostTree
from kgpu.discovery.features.local_source import FOLDER, MAX_FILE, parse_feature_file, read_feature_files, signature

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PAST, FUTURE = "2029-12-31T23:59:59Z", "2030-01-01T00:00:01Z"


@pytest.mark.parametrize(
    ("lines", "labels", "features"),
    [
        (["a", "b=", "c=d=e", " f = g", "", "# x"], {"a": "true", "b": "", "c": "d=e", " f ": " g"}, None),
        (["a=1", "a=2"], {"a": "2"}, None),
        (["# +no-label", "a=1", "b=2"], {"b": "2"}, {"a": "1", "b": "2"}),
        (["# +no-feature", "a=1", "b=2"], {"a": "1", "b": "2"}, {"b": "2"}),
        (["a=1", "#+no-label", "a=2"], {}, {"a": "2"}),
        (["# +no-label", "# a comment", "", "a=1"], {}, {"a": "1"}),
        ([f"# +expiry-time={PAST}", "a=1", f"# +expiry-time={FUTURE}", "b=2"], {"b": "2"}, None),
        ([f"# +expiry-time={PAST}", "# +expiry-time=soon", "a=1"], {}, None),
        (["# +expiry-time=2030-01-01T05:00:00+06:00", "a=1"], {}, None),
        ([f"# +expiry-time={PAST}", "# +no-label", "a=1", f"# +expiry-time={FUTURE}", "b=1"], {"b": "1"}, None),
    ],
)
def test_lines(lines, labels, features):
    found = parse_feature_file("\n".join(lines), NOW, "f")
    assert found.labels == labels
    assert found.features == (labels if features is None else features)


@pytest.mark.parametrize("time", ["soon", "", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_told_with_its_line(time):
    (note,) = parse_feature_file(f"a\n# +expiry-time={time}\nb", NOW, "f").notes
    assert "f, line 2" in note.what


def folder(tmp_path):
    found = tmp_path / FOLDER
    found.mkdir(parents=True)
    return found


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    files = folder(tmp_path)
    (tmp_path / "secret").write_text("password=x\n")
    (files / "a-link").symlink_to(tmp_path / "secret")
    (files / "b-large").write_text("x" * (MAX_FILE + 1))
    (files / "c").write_text("good=1\n")
    (files / ".hidden").write_text("hidden=1\n")
    (files / "folder").mkdir()
    os.mkfifo(files / "d-pipe")
    found = read_feature_files(HostTree(tmp_path), NOW)
    assert found.labels == {"good": "1"}
    assert [note.what.split("/")[-1].split(" ")[0] for note in found.notes] == ["a-link", "b-large", "d-pipe"]


def test_a_changed_file_changes_what_is_looked_at(tmp_path):
    file = folder(tmp_path) / "a"
    assert list(signature(HostTree(tmp_path))) == []
    file.write_text("x")
    before = list(signature(HostTree(tmp_path)))
    file.write_text("xy")
    assert list(signature(HostTree(tmp_path))) != before


@given(st.text())
def test_any_text_is_read(text):
    found = parse_feature_file(text, NOW, "f")
    assert all("\n" not in key for key in found.labels)
