"""What the chart has from the code is current: definitions, schema, version, image."""

from __future__ import annotations

import subprocess
import sys

import jsonschema
import pytest
import yaml

import kgpu
from kgpu.formats.names import IMAGE_REPOSITORY
from kgpu.lab.real import components, kgpu_image
from tests.charts.conftest import CHART

ROOT = CHART.parents[1]


def test_generated_files_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "chart.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_charts_version_is_kgpus() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == kgpu.__version__


def test_the_image_that_the_lab_makes_is_the_one_that_the_chart_asks_for() -> None:
    image = yaml.safe_load((CHART / "values.yaml").read_text())["image"]
    assert image["repository"] == IMAGE_REPOSITORY
    assert f"{image['repository']}:{kgpu.__version__}" in kgpu_image.NAMES


def test_the_defaults_fit_the_schema() -> None:
    import json

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    values["driver"]["enabled"] = "yes"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema)


def test_helm_takes_the_kubernetes_for_granted_that_it_is_built_with() -> None:
    go_mod = (components.MODULES_DIR / components.HELM.module / "go.mod").read_text()
    client = components.module_version("k8s.io/client-go", go_mod)
    assert client.split(".")[1] == str(components.HELM_KUBERNETES_MINOR)
