"""``kgpu advise workload`` on recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.formats.usage import encode
from kgpu.formats.usage_now import VERSION, LinesPage, encode_page
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS
from kgpu.usage.measure import measure
from tests.usage.recordings import Device, holder, node, timeline_of, write

HOUR = 3600


def device(hours: int) -> Device:
    """An hour in five the workload is busy on a tenth of the multiprocessors."""
    found = Device(node="a", device="GPU-0")
    who = holder("serve-1", namespace="ml", owner="Deployment/serve")
    for at in range(hours):
        busy = 0.9 if at % 5 == 0 else 0.0
        found.spend(HOUR, who, busy=busy, sm=busy / 9)
    return found


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["kgpu", "advise", "workload", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_figures_are_percentiles_by_time() -> None:
    found = measure(timeline_of(device(100), nodes=[node("a")]), "ml", "serve")
    assert found is not None
    assert (found.hours, found.gpus_per_pod, found.pods) == (100, 1, 1)
    assert (found.activity, found.multiprocessors) == (pytest.approx(0.9), pytest.approx(0.1))
    assert found.mean_activity == pytest.approx(0.18)
    assert measure(timeline_of(device(1)), "ml", "other") is None
    assert measure(timeline_of(device(1)), "web", "serve") is None


def test_two_devices_of_one_pod_are_several_gpus_and_their_hours_count_once() -> None:
    second = device(10)
    for at, line in enumerate(second.lines):
        second.lines[at] = type(line)(
            **{**{name: getattr(line, name) for name in line.__struct_fields__}, "device": "GPU-1"}
        )
    found = measure(timeline_of(device(10), second), "ml", "serve-1")
    assert found is not None
    assert (found.gpus_per_pod, found.hours) == (2, 10)


def test_less_than_three_days_are_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "usage.jsonl", device(71), nodes=[node("a")])
    code, out, _ = run(capsys, "ml/serve", "--from", path)
    assert code == 3
    assert out.startswith(
        "ml/serve: not enough data (71 h of 72): it held GPUs in 100% of the 71 h that are recorded, so there is enough "
        "in 1 more day like these\n"
    )


def test_at_the_pace_of_the_recording_it_says_when_there_will_be_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = device(12)
    found.spend(36 * HOUR)
    out = run(capsys, "ml/serve", "--from", write(tmp_path / "usage.jsonl", found))[1]
    assert out.startswith("ml/serve: not enough data (12 h of 72): it held GPUs in 25% of the 48 h that are recorded")
    assert "enough in 10 more days like these" in out


def test_hours_in_which_nobody_knows_what_ran_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = device(50)
    found.spend(50 * HOUR, holder("serve-1", namespace="ml", owner="Deployment/serve"), watched=False)
    path = write(tmp_path / "usage.jsonl", found)
    code, out, _ = run(capsys, "ml/serve", "--from", path)
    assert code == 3
    assert out.startswith(
        "ml/serve: not enough data (50 h of 72): it held GPUs for 100 h, and what ran on them is known of 50 h"
    )
    evidence = json.loads(run(capsys, "ml/serve", "--from", path, "-o", "json")[1])["evidence"]
    assert (evidence["hours"], evidence["watchedHours"], evidence["recordedHours"]) == (100, 50, 100)


def test_a_window_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "usage.jsonl", device(100), nodes=[node("a")])
    for words, hours in (
        (("--since", "80h"), 80),
        (("--until", "10h"), 90),
        (("--since", "80h", "--until", "30h"), 50),
    ):
        evidence = json.loads(run(capsys, "ml/serve", "--from", path, *words, "-o", "json")[1])["evidence"]
        assert (evidence["hours"], evidence["recordedHours"]) == (hours, hours)
    code, _, err = run(capsys, "ml/serve", "--from", path, "--until", "2020-01-01")
    assert (code, "has nothing of ml/serve in that time" in err) == (2, True)


class Cluster(FakeApi):
    """One agent, or one history, whose page has these lines."""

    def __init__(self, *devices: Device, app: str) -> None:
        super().__init__()
        labels = {"app": app}
        pod = {"name": "p", "namespace": names.GPU_OPERATOR_NAMESPACE, "labels": labels}
        self.put(
            PODS, {"metadata": pod, "spec": {"nodeName": "a"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        page = LinesPage(version=VERSION, node="a", cursor="1")
        lines = [encode(line) for one in devices for line in one.lines]
        self.pages[names.GPU_OPERATOR_NAMESPACE, "p"] = encode_page(page, lines).decode()

    async def close(self) -> None:
        """Several commands use it."""


@pytest.mark.parametrize("app", [names.AGENT_DAEMON_SET, names.USAGE_DEPLOYMENT])
def test_it_is_read_from_the_history_or_the_agents(
    app: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(device(100), app=app)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    code, out, err = run(capsys, "ml/serve", "-o", "json")
    assert json.loads(out)["evidence"]["hours"] == 100, err
    assert code == 0
    code, _, err = run(capsys, "ml/nobody")
    assert (code, "what the cluster has recorded has nothing of ml/nobody" in err) == (2, True)


def test_a_cluster_in_which_nothing_records_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: Cluster(app="other"))
    code, _, err = run(capsys, "ml/serve")
    assert code == 2
    assert "nothing has recorded what GPUs are used for" in err


def test_memory_that_was_not_recorded_leaves_no_advice_but_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "usage.jsonl", device(80), nodes=[node("a")])
    code, out, _ = run(capsys, "ml/serve", "--from", path, "--neighbours", "trusted", "-o", "json")
    assert code == 3
    found = json.loads(out)
    assert found["advice"] is None
    assert found["evidence"]["memoryMiB"] is None


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "usage.jsonl", device(1), nodes=[node("a")])
    assert run(capsys, "serve", "--from", path)[0] == 2
    code, _, err = run(capsys, "ml/nobody", "--from", path)
    assert code == 2
    assert "has nothing of ml/nobody" in err
