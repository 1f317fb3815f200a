"""``kgpu preflight`` on the command line: exit codes, forms, where the configuration comes from, wrong input."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kgpu.cli import _preflight_intent
from kgpu.cli._preflight_intent import intent_of
from kgpu.cli.main import main
from kgpu.doctor.preflight.model import Intent
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.preflight.scenes import NODE, host, node

Said = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent.parent


def dump(folder: Path, *objects: dict[str, Any]) -> str:
    path = folder / "dump.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(path)


def run(*words: str) -> int:
    return main(["kgpu", "preflight", "--no-registry", *words])


def policy(**driver: Any) -> dict[str, Any]:
    manager = {"repository": "r.io/x", "image": "manager", "version": "v1"}
    spec = {"operator": {}, "daemonsets": {}, "driver": {"manager": manager, **driver}}
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "mine"}, "spec": spec}


def image_of(*objects: dict[str, Any], name: str = NODE, values: Any = None, version: str = "") -> str:
    found = intent_of(Snapshot.of(objects), namespace="", values=values or {}, version=version)
    return found.drivers[name].image


def test_exit_codes_are_0_1_and_2(tmp_path: Path, capsys: Said) -> None:
    assert run("--from", dump(tmp_path, node(), host())) == 0
    assert capsys.readouterr().out.startswith("Nothing is predicted to fail on 1 node with GPUs")
    assert run("--from", dump(tmp_path, node(), host(secureBoot=True))) == 1
    out = capsys.readouterr().out
    assert "✘ KRN-04 node gpu-1 (certain)" in out
    assert "to do:" in out
    assert run("--from", dump(tmp_path)) == 2
    assert run("--from", str(tmp_path / "nothing")) == 2


def test_json_is_a_document_and_progress_is_not_in_it(tmp_path: Path, capsys: Said) -> None:
    assert run("--from", dump(tmp_path, node()), "-o", "json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["nodes"] == [NODE]
    assert captured.err == ""


def test_without_a_policy_the_charts_defaults_count() -> None:
    chart = yaml.safe_load((ROOT / "charts/kgpu/values.yaml").read_text())
    for section, known in _preflight_intent.DEFAULTS.items():
        assert known.items() <= chart.get(section, {}).items(), section
    manager = chart["driver"]["manager"]
    assert not any(manager[key] for key in ("repository", "image", "version"))  # kgpu's own
    version = chart["driver"]["version"]
    assert image_of(node()) == f"nvcr.io/nvidia/driver:{version}-ubuntu24.04"


def test_the_policy_that_is_there_counts_then_values_then_the_version() -> None:
    mine = policy(repository="r.io/own", image="driver", version="550.1")
    assert image_of(node(), mine) == "r.io/own/driver:550.1-ubuntu24.04"
    values = {"driver": {"version": "560.2"}, "unknown": {"x": 1}}
    assert image_of(node(), mine, values=values) == "r.io/own/driver:560.2-ubuntu24.04"
    assert image_of(node(), mine, values=values, version="570.3") == "r.io/own/driver:570.3-ubuntu24.04"


def test_values_say_what_else_is_to_be_installed() -> None:
    def of(**values: Any) -> Intent:
        return intent_of(Snapshot.of([node()]), namespace="", values=values, version="")

    plain = of()
    assert (plain.toolkit, plain.by_objects) == (True, False)
    assert of(toolkit={"enabled": False}).toolkit is False
    assert of(driver={"nvidiaDriverCRD": {"enabled": True}}).by_objects is True
    assert of(gds={"enabled": True}).policy["spec"]["gds"] == {"enabled": True}


def test_precompiled_images_are_named_by_kernel() -> None:
    mine = policy(repository="r.io/own", image="driver", version="580", usePrecompiled=True)
    assert image_of(node(kernelVersion="6.8.0-45-generic"), mine) == "r.io/own/driver:580-6.8.0-45-generic-ubuntu24.04"


def test_nvidiadrivers_decide_where_the_policy_leaves_it_to_them() -> None:
    mine = policy(useNvidiaDriverCRD=True)
    pool = {
        "apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "a", "uid": "1"},
        "spec": {"driverType": "gpu", "repository": "r.io/pool", "image": "driver", "version": "570.1",
                 "nodeSelector": {"pool": "a"}, "manager": {"repository": "r", "image": "m", "version": "1"}},
    }  # fmt: skip
    inside, outside = node(), node("other")
    inside["metadata"]["labels"]["pool"] = "a"
    found = intent_of(Snapshot.of([inside, outside, mine, pool]), namespace="", values={}, version="")
    assert found.drivers[NODE].image == "r.io/pool/driver:570.1-ubuntu24.04"
    assert found.drivers[NODE].owner == "NVIDIADriver a"
    assert not found.drivers["other"].enabled


def test_what_can_not_be_made_an_image_of_is_predicted_and_not_an_error(tmp_path: Path, capsys: Said) -> None:
    mine = policy(repository="r.io/own", image="driver", version="sha256:" + "0" * 64, usePrecompiled=True)
    assert run("--from", dump(tmp_path, node(), host(), mine)) == 1
    assert "drivers are precompiled" in " ".join(capsys.readouterr().out.split())


def test_the_namespace_is_where_kgpu_is() -> None:
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "kgpu", "namespace": "gpus", "labels": {"app.kubernetes.io/name": "kgpu"}},
    }
    assert intent_of(Snapshot.of([deployment]), namespace="", values={}, version="").namespace == "gpus"
    assert intent_of(Snapshot.of([deployment]), namespace="mine", values={}, version="").namespace == "mine"
    assert intent_of(Snapshot.of([]), namespace="", values={}, version="").namespace == "gpu-operator"


def wrong(tmp_path: Path) -> Iterable[tuple[list[str], str]]:
    path = dump(tmp_path, node())
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    (tmp_path / "odd.yaml").write_text("driver: {usePrecompiled: [1]}\n")
    (tmp_path / "long.yaml").write_text("a: " + "x" * (1 << 20))
    yield ["--from", path, "--host"], "exclude each other"
    yield ["--probe", "--host"], "exclude each other"
    yield ["--host", "--node", "a"], "--host is about this machine"
    yield ["-o", "facts"], "add --host"
    yield ["--from", path, "--node", "gpu-2"], 'there is no node gpu-2; did you mean "gpu-1"?'
    yield ["--from", path, "--values", str(tmp_path / "list.yaml")], "has no values"
    yield ["--from", path, "--values", str(tmp_path / "broken.yaml")], "can't read"
    yield ["--from", path, "--values", str(tmp_path / "long.yaml")], "is longer than"
    yield ["--from", path, "--values", str(tmp_path / "none.yaml")], "No such file"
    yield ["--host", "--root", str(tmp_path)], "has nothing of a node"


def test_wrong_input_is_an_error_in_three_parts(tmp_path: Path, capsys: Said) -> None:
    for words, said in wrong(tmp_path):
        assert run(*words) == 2, words
        error = capsys.readouterr().err
        assert said in error, (words, error)
        assert len(error.strip().split("\n")) >= 2


def test_a_field_of_a_wrong_type_in_the_values_is_told(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "odd.yaml").write_text("driver: {usePrecompiled: [1]}\n")
    assert run("--from", dump(tmp_path, node()), "--values", str(tmp_path / "odd.yaml")) == 2
    assert "usePrecompiled" in capsys.readouterr().err


def test_a_machine_says_its_facts_on_one_line_that_the_doctor_reads(tmp_path: Path, capsys: Said) -> None:
    from kgpu.doctor.sources import probed

    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-45-generic\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert main(["kgpu", "preflight", "--host", "--root", str(tmp_path), "-o", "facts"]) == 0
    facts = probed.found_in(capsys.readouterr().out.encode())
    assert facts is not None
    assert facts["kernel"] == "6.8.0-45-generic"
