"""``kgpu doctor`` and ``kgpu collect`` on the command line: exit codes, forms, targets, --explain, --watch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kgpu.cli import doctor as module
from kgpu.cli.main import main
from kgpu.doctor import explain
from kgpu.doctor.rule import Rule
from kgpu.doctor.rules import all_rules
from tests.doctor.example import Example, all_examples

EXAMPLES: dict[str, Example] = {one.name: one for one in all_examples()}
Said = pytest.CaptureFixture[str]


@pytest.fixture
def broken(tmp_path: Path) -> str:
    return dump(tmp_path / "broken.yaml", EXAMPLES["SCH-08"].broken)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    return dump(tmp_path / "healthy.yaml", EXAMPLES["SCH-08"].healthy)


def dump(path: Path, objects: list[dict[str, object]]) -> str:
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)


def test_findings_are_exit_code_1_and_health_is_0(broken: str, healthy: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--from", broken]) == 1
    out = capsys.readouterr().out
    assert "SCH-08" in out
    assert "to do:" in out
    assert main(["kgpu", "doctor", "--from", healthy]) == 0
    assert capsys.readouterr().out.startswith("Nothing is wrong as far as can be seen")


def test_of_a_namespace_is_told_what_is_in_it_or_hurts_its_pods(tmp_path: Path, capsys: Said) -> None:
    broken = dump(tmp_path / "broken.yaml", EXAMPLES["SCH-08"].broken)
    other = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
    assert main(["kgpu", "doctor", "--from", broken, "-n", "ml"]) == 1
    assert "SCH-08" in capsys.readouterr().out
    both = dump(tmp_path / "both.yaml", [*EXAMPLES["SCH-08"].broken, other])
    assert main(["kgpu", "doctor", "--from", both, "-n", "other"]) == 0
    assert "(Namespace other;" in capsys.readouterr().out
    assert main(["kgpu", "doctor", "--from", both, "-n", "othr"]) == 2
    assert 'there is no namespace othr; did you mean "other"?' in capsys.readouterr().err


def test_what_can_not_be_judged_is_not_well(tmp_path: Path, capsys: Said) -> None:
    pods = [one for one in EXAMPLES["SCH-08"].broken if one["kind"] == "Pod"]
    assert main(["kgpu", "doctor", "--from", dump(tmp_path / "pods.yaml", pods)]) == 2
    assert "this can't be judged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "/no/such/file"], "can't read /no/such/file"),
        (["--from", "x", "--host"], "exclude each other"),
        (["-n", "ml", "--host"], "a machine is in no namespace"),
        (["pods/ml/train", "--kubeconfig", "/no/such/config"], "there is no file /no/such/config"),
        (["pot", "ml/train"], "did you mean"),
        (["pod"], "names nothing"),
        (["pod", "a", "b"], "names nothing"),
        (["--explain", "SCH-99"], "there is no rule SCH-99"),
        (["-o", "xml"], "xml"),
    ],
)
def test_what_cannot_be_looked_at_is_exit_code_2(words: list[str], said: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_an_api_server_that_does_not_answer_is_exit_code_2(tmp_path: Path, capsys: Said) -> None:
    path = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster],
              "contexts": [context], "users": [{"name": "u", "user": {}}]}  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    assert main(["kgpu", "doctor", "--kubeconfig", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_json_has_the_documented_form(broken: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--from", broken, "-o", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    first = said["findings"][0]
    assert {"id", "subject", "cause", "evidence", "remedy", "confidence"} <= set(first)
    assert first["id"] == "SCH-08"
    assert [one["confidence"] for one in said["findings"]] == sorted(
        (one["confidence"] for one in said["findings"]), reverse=True
    )


def test_yaml_says_what_json_says(broken: str, capsys: Said) -> None:
    main(["kgpu", "doctor", "--from", broken, "-o", "json"])
    wanted = json.loads(capsys.readouterr().out)
    assert main(["kgpu", "doctor", "--from", broken, "-o", "yaml"]) == 1
    assert yaml.safe_load(capsys.readouterr().out) == wanted


def test_sarif(broken: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--from", broken, "-o", "sarif"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["version"] == "2.1.0"
    (run,) = said["runs"]
    known = {one["id"] for one in run["tool"]["driver"]["rules"]}
    assert known == {one["ruleId"] for one in run["results"]}
    for one in run["results"]:
        assert one["level"] in ("error", "warning", "note")
        assert 0 <= one["rank"] <= 100
        assert one["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]


@pytest.mark.parametrize("words", [["pod", "ml/train"], ["po/train", "-n", "ml"], ["pods/ml/train"]])
def test_a_pod_is_named_in_every_way(words: list[str], broken: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", *words, "--from", broken]) == 1
    assert "SCH-08" in capsys.readouterr().out


def test_a_name_that_is_not_there_has_a_hint(broken: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", "pod", "ml/trin", "--from", broken]) == 2
    assert "ml/train" in capsys.readouterr().err


def test_a_node_without_findings_is_healthy(tmp_path: Path, capsys: Said) -> None:
    other = {
        "kind": "Node",
        "metadata": {"name": "idle"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    path = dump(tmp_path / "x.yaml", [*EXAMPLES["SCH-08"].healthy, other])
    assert main(["kgpu", "doctor", "node", "idle", "--from", path]) == 0
    assert "Node idle" in capsys.readouterr().out


def test_explain_says_what_it_means_how_it_is_found_and_what_to_do(capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--explain", "sch-08"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SCH-08: No node has the label's value\n")
    for words in (
        "What it means:",
        "How it is found there:",
        "spec.nodeSelector",
        "What to do there:",
        "kubectl -n ml",
    ):
        assert words in out
    assert "more: docs/answers/wrong-product-name.md" in out


def test_explain_without_an_id_lists_all_and_a_group_lists_its_own(capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [rule.id for rule in all_rules()]
    assert "SCH-08  No node has the label's value" in lines
    for group in ("sch", "SCH-", "SCH-*"):
        assert main(["kgpu", "doctor", "--explain", group]) == 0
        assert capsys.readouterr().out.splitlines() == [line for line in lines if line.startswith("SCH-")]


def test_explain_as_data(capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--explain", "SCH-08", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["id"], found["pages"]) == ("SCH-08", ["docs/answers/wrong-product-name.md"])
    assert found["example"]["remedy"]
    assert main(["kgpu", "doctor", "-o", "yaml", "--explain"]) == 0
    assert len(yaml.safe_load(capsys.readouterr().out)) == len(all_rules())
    assert main(["kgpu", "doctor", "--explain", "SCH-08", "-o", "sarif"]) == 2


def test_explain_says_what_the_rule_rests_on(capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--explain", "KRN-05"]) == 0
    assert "rests on: NVIDIA/gpu-operator#751" in capsys.readouterr().out.splitlines()
    assert main(["kgpu", "doctor", "--explain", "KRN-05", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rests_on"] == ["NVIDIA/gpu-operator#751"]


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_every_rule_is_explained_with_a_case_and_a_remedy(rule: Rule) -> None:
    found = explain.about(rule, rule.id)
    assert found.cause
    assert found.evidence
    assert found.remedy
    assert all(Path(page).is_file() for page in found.pages)


def test_as_a_plugin_of_kubectl(broken: str, healthy: str, capsys: Said) -> None:
    assert main(["kubectl-gpu", "doctor", "--from", broken]) == 1
    assert main(["/usr/local/bin/kubectl-gpu", "doctor", "--from", healthy]) == 0
    assert main(["kubectl-gpu", "doctor", "--help"]) == 0
    assert "kubectl gpu doctor" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--from", "-"], ["-"]])
def test_standard_input(words: list[str], broken: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    with open(broken, "rb") as file:
        monkeypatch.setattr("sys.stdin", type("In", (), {"buffer": file}))
        assert main(["kgpu", "doctor", *words]) == 1
    assert "SCH-08" in capsys.readouterr().out


class Course:
    """Looks at a file that others change: one step of ``steps`` is done before each look; after the last: Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self._look = module.look
        monkeypatch.setattr(module, "look", self.look)
        monkeypatch.setattr("asyncio.sleep", self.no_wait)

    async def look(self, *words: object) -> object:
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()
        return await self._look(*words)  # type: ignore[arg-type]

    async def no_wait(self, _: float) -> None:
        return


def nothing() -> None:
    """Nothing happens between two looks."""


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_watch_prints_a_line_for_each_change_and_nothing_else(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    path = Path(broken)
    Course(
        monkeypatch, nothing, nothing,
        lambda: dump(path, EXAMPLES["SCH-08"].healthy), nothing,
        lambda: dump(path, EXAMPLES["SCH-08"].broken), nothing,
    )  # fmt: skip
    assert main(["kgpu", "doctor", "--from", broken, "--watch", "--interval", "1"]) == 1
    out = capsys.readouterr().out
    first, _, rest = out.partition("\n2")
    lines = f"2{rest}".splitlines()
    told = [line for line in lines if re.match(STAMP, line)]
    assert "✘ SCH-08 Pod ml/train" in first
    assert [re.sub(STAMP, "T", line).split(":")[0] for line in told] == [
        "T ended ✘ SCH-08 Pod ml/train",
        "T Nothing is wrong as far as can be seen; 1 pod or node with GPUs is not ready yet (Cluster; "
        + told[1].partition("(Cluster; ")[2],
        "T appeared ✘ SCH-08 Pod ml/train",
    ]
    assert "Nothing is wrong" in told[1]
    after = lines[lines.index(told[2]) + 1 :]
    assert any(line.strip() == "to do:" for line in after), "what has appeared is told in full"
    assert out.count("to do:") == 2


def test_a_watch_ends_with_the_code_of_its_last_report(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    Course(monkeypatch, nothing, lambda: dump(Path(broken), EXAMPLES["SCH-08"].healthy))
    assert main(["kgpu", "doctor", "--from", broken, "--watch"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_watch_that_never_saw_anything_is_interrupted(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Course(monkeypatch)
    assert main(["kgpu", "doctor", "--from", broken, "--watch"]) == 130


def test_watch_as_json_is_one_document_a_line(broken: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    Course(monkeypatch, nothing, nothing, lambda: dump(Path(broken), EXAMPLES["SCH-08"].healthy), nothing)
    assert main(["kgpu", "doctor", "--from", broken, "--watch", "-o", "json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(one["change"], one["finding"]["id"], one["exit_code"]) for one in documents if "finding" in one]
    assert told == [("appeared", "SCH-08", 1), ("ended", "SCH-08", 0)]
    assert all(re.fullmatch(STAMP, one["time"]) for one in documents)


def test_a_watch_outlives_a_look_that_fails(broken: str, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    path = Path(broken)
    text = path.read_text()
    Course(monkeypatch, nothing, path.unlink, nothing, lambda: path.write_text(text))
    assert main(["kgpu", "doctor", "--from", broken, "--watch"]) == 1
    out = capsys.readouterr().out
    assert out.count("can't look: ") == 1
    assert out.count("it can be looked at again") == 1
    assert out.count("SCH-08 Pod ml/train") == 1


def test_sarif_can_not_be_watched(broken: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--from", broken, "--watch", "-o", "sarif"]) == 2
    assert "to do: leave --watch out" in capsys.readouterr().err


def test_collect_of_a_host_can_be_looked_at(tmp_path: Path, capsys: Said) -> None:
    root = tmp_path / "root"
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.8.0\n")
    file = tmp_path / "node.tar.gz"
    assert main(["kgpu", "collect", "--host", "--root", str(root), "-o", str(file)]) == 0
    out = capsys.readouterr().out
    assert "1 host" in out
    assert f"kgpu doctor --from {file}" in out
    assert main(["kgpu", "doctor", "--from", str(file)]) in (0, 1)


@pytest.mark.parametrize("has", ["nothing at all", "an empty folder", "a log", "an image's files"])
def test_a_root_that_is_no_nodes_is_not_called_healthy(has: str, tmp_path: Path, capsys: Said) -> None:
    root = tmp_path / "root"
    if has == "an empty folder":
        root.mkdir()
    if has == "a log":
        (root / "var/log").mkdir(parents=True)
        (root / "var/log/dmesg").write_text("[    0.000000] Linux version 6.8.0\n")
    if has == "an image's files":
        for name in ("proc", "sys", "dev", "etc"):
            (root / name).mkdir(parents=True)
        (root / "etc/os-release").write_text("ID=ubuntu\n")
    for words in (["doctor"], ["doctor", "--watch"], ["collect", "-o", str(tmp_path / "node.tar.gz")]):
        assert main(["kgpu", *words, "--host", "--root", str(root)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"{root} has nothing of a node" in said.err
        assert "expected: the root of a node" in said.err
        assert "to do: give it as --root" in said.err
    assert not (tmp_path / "node.tar.gz").exists()


def test_what_a_log_alone_says_is_told(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "var/log").mkdir(parents=True)
    line = "[    5.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    (tmp_path / "var/log/dmesg").write_text(line)
    assert main(["kgpu", "doctor", "--host", "--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "HW-01" in out
    assert "PCI devices" in out


def test_collect_into_a_folder_that_is_not_there(tmp_path: Path, capsys: Said) -> None:
    root = tmp_path / "root"
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.8.0\n")
    assert main(["kgpu", "collect", "--host", "--root", str(root), "-o", str(tmp_path / "no/x.tar.gz")]) == 2
    assert "can't write" in capsys.readouterr().err


def test_the_way_of_a_pod_is_shown_on_request(broken: str, capsys: Said) -> None:
    main(["kgpu", "doctor", "pod", "ml/train", "--from", broken, "--trace"])
    out = capsys.readouterr().out
    assert out.startswith("Pod ml/train, step by step:\n  1 admitted")
    main(["kgpu", "doctor", "pod", "ml/train", "--from", broken, "--trace", "-o", "json"])
    assert [row["step"] for row in json.loads(capsys.readouterr().out)["trace"]][-1] == "computing"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--trace"], "not of a cluster"), (["node", "n1", "--trace"], "not of Node n1"),
        (["pod", "ml/train", "--trace", "-o", "sarif"], "-o sarif has no place for --trace"),
        (["pod", "ml/train", "--trace", "--watch"], "--watch has no place for --trace"),
    ],
)  # fmt: skip
def test_only_a_pod_has_a_way(words: list[str], why: str, broken: str, capsys: Said) -> None:
    assert main(["kgpu", "doctor", "--from", broken, *words]) == 2
    assert why in capsys.readouterr().err
