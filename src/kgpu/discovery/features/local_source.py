"""Feature files: lines ``name=value`` that other programs leave in a folder of the node, as labels and features.

The form is node feature discovery's, directives in comments included. Files are regular ones of bounded size; links are
refused, because whoever may write into the folder could have any file of the node published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError, UserError
from kgpu.discovery.features.host_tree import HostTree, folders
from kgpu.discovery.features.model import FeatureSet
from kgpu.formats.names import NFD_FOLDER
from kgpu.host.bounded import read_regular

FOLDER: Final = f"{NFD_FOLDER}/features.d".lstrip("/")
MAX_FILE: Final = 65_536
MAX_FILES: Final = 256
MAX_ELEMENTS: Final = 10_000
_EXPIRY: Final = "+expiry-time="
_NO_LABEL: Final = "+no-label"
_NO_FEATURE: Final = "+no-feature"


@dataclass(slots=True)
class FeatureFiles:
    """What the files say; later files win. ``notes`` are what can't be used of them."""

    labels: dict[str, str] = field(default_factory=dict)
    features: dict[str, str] = field(default_factory=dict)
    notes: list[UserError] = field(default_factory=list)

    def as_features(self) -> FeatureSet:
        """``local.label`` and ``local.feature``."""
        found: Mapping[str, Mapping[str, str]] = {"local.label": self.labels, "local.feature": self.features}
        return FeatureSet(attributes={name: values for name, values in found.items() if values})


def read_feature_files(host: HostTree, now: datetime) -> FeatureFiles:
    """All files of the folder, by name."""
    found = FeatureFiles()
    for path in feature_files(host):
        try:
            content, _ = read_regular(path, MAX_FILE, what="a regular file of features", follow=False)
        except HostError as error:
            found.notes.append(error)
            continue
        one = parse_feature_file(content.decode("utf-8", "replace"), now, str(path))
        found.notes += one.notes
        if len(found.features) + len(one.features) > MAX_ELEMENTS or len(found.labels) + len(one.labels) > MAX_ELEMENTS:
            found.notes.append(
                HostError(f"{path} is left out", f"at most {MAX_ELEMENTS} features of all files", "write fewer lines")
            )
            continue
        found.labels |= one.labels
        found.features |= one.features
    return found


def feature_files(host: HostTree) -> list[Path]:
    """The files, sorted; hidden ones and folders don't count."""
    named = [one for one in folders(host.root / FOLDER) if not one.name.startswith(".")]
    return [one for one in named if not one.is_dir()][:MAX_FILES]


def parse_feature_file(content: str, now: datetime, source: str) -> FeatureFiles:
    """One file's lines. A directive for one line takes back what an earlier line has said of the same name."""
    found = FeatureFiles()
    expired, skips = False, ""
    for number, line in enumerate(content.splitlines(), 1):
        if line.startswith("#"):
            word = line[1:].strip()
            if word.startswith(_EXPIRY):
                moment = _moment(word.removeprefix(_EXPIRY))
                if moment is None:
                    found.notes.append(_wrong_time(source, number))
                else:
                    expired = moment <= now
            elif word in {_NO_LABEL, _NO_FEATURE}:
                skips = word
            continue
        if not line.strip():
            continue
        if not expired:
            _take(found, line, skips)
        skips = ""
    return found


def _take(found: FeatureFiles, line: str, skips: str) -> None:
    key, sign, value = line.partition("=")
    value = value if sign else "true"
    for into, left_out in ((found.labels, _NO_LABEL), (found.features, _NO_FEATURE)):
        if skips == left_out:
            into.pop(key, None)
        else:
            into[key] = value


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _wrong_time(source: str, line: int) -> UserError:
    return HostError(
        f"{source}, line {line}: no time follows {_EXPIRY}", "a time such as 2030-01-31T12:00:00Z", "correct the line"
    )


def now() -> datetime:
    """The present moment."""
    return datetime.now(tz=UTC)


def signature(host: HostTree) -> Iterator[str]:
    """What changes whenever a feature file does, read cheaply."""
    for path in feature_files(host):
        try:
            about = path.lstat()
        except OSError:
            continue
        yield f"{path}:{about.st_mtime_ns}:{about.st_size}"
