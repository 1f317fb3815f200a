"""Helm, built once into the lab's cache, and what the chart becomes with given values."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.base.errors import LabError
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build

CHART = Path(__file__).resolve().parents[2] / "charts" / "kgpu"
NAMESPACE = "gpu-operator"
# A cold build of Helm belongs to the first test's setup.
TIMEOUT_S = 900

# A chart has hundreds of kilobytes of CRDs: where PyYAML has the parser in C, it takes a tenth of the time.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def helm() -> str:
    """The Helm program. Where it can't be built the tests are skipped; with KGPU_REQUIRE_REAL=1 they fail."""
    try:
        return build.ensure_helm(PlainProgress())
    except LabError as error:
        if os.environ.get("KGPU_REQUIRE_REAL") == "1":
            pytest.fail(error.one_line())
        pytest.skip(f"no Helm here: {error.one_line()}")


@dataclass(frozen=True)
class Made:
    """What ``helm template`` printed."""

    code: int
    text: str
    error: str

    @functools.cached_property
    def objects(self) -> list[Object]:
        assert self.code == 0, self.error
        return [one for one in yaml.load_all(self.text, LOADER) if one]

    def one(self, kind: str, name: str) -> Object:
        return next(obj for obj in self.objects if (obj["kind"], obj["metadata"]["name"]) == (kind, name))

    def has(self, kind: str, name: str = "") -> bool:
        return any(obj["kind"] == kind and name in {"", obj["metadata"]["name"]} for obj in self.objects)

    @property
    def policy(self) -> Object:
        return self.one("ClusterPolicy", "cluster-policy")["spec"]


Chart = Callable[..., Made]


@pytest.fixture
def chart(helm: str, tmp_path: Path) -> Chart:
    """``chart("driver.enabled=false", values={...}, words=[...])``: the chart's objects with these values."""
    return chart_in(helm, tmp_path)


def chart_in(helm: str, tmp_path: Path) -> Chart:
    """As the fixture, with a folder for what Helm writes."""

    def make(*sets: str, values: Object | None = None, words: tuple[str, ...] = ()) -> Made:
        command = [helm, "template", "kgpu", str(CHART), "--namespace", NAMESPACE, *words]
        for one in sets:
            command += ["--set", one]
        if values is not None:
            file = tmp_path / "values.yaml"
            file.write_text(yaml.safe_dump(values))
            command += ["--values", str(file)]
        env = {**os.environ, "HELM_CACHE_HOME": str(tmp_path), "HELM_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
        return Made(done.returncode, done.stdout, done.stderr)

    return make
