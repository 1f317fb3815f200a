"""``kgpu usage`` on recordings: the war story to the cent, every form of output, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.formats.usage import UsageState
from tests.usage.recordings import Device, holder, node, write

DAY = 86_400


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["kgpu", "usage", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def data(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, _ = run(capsys, *words, "-o", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def idle_fleet(path: Path, weekends: int) -> Path:
    """16 nodes with 8 A100 each, held and idle for 60 hours, as often as that; between, they were busy for a day."""
    devices = []
    for number in range(128):
        device = Device(node=f"gpu-{number // 8:02}", device=f"GPU-{number}")
        pod = holder(f"train-{number}", namespace="research")
        for weekend in range(weekends):
            if weekend:
                device.spend(DAY, pod, busy=1.0, sm=0.8)
            device.spend(60 * 3600, pod, state=UsageState.HELD_IDLE, busy=0.0, sm=0.0)
        devices.append(device)
    return write(path, *devices, nodes=[node(f"gpu-{at:02}", gpus=8) for at in range(16)])


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text("product,perGpuHour,source\n*A100*,3.06,the contract\n")
    return path


@pytest.mark.parametrize(("weekends", "cost"), [(1, 23_500.80), (2, 47_001.60)])
def test_128_idle_gpus_for_60_hours_cost_what_they_cost_to_the_cent(
    tmp_path: Path, prices: Path, capsys: pytest.CaptureFixture[str], weekends: int, cost: float
) -> None:
    path = idle_fleet(tmp_path / "u.jsonl", weekends)
    (row,) = data(capsys, "--from", path, "--prices", prices)["rows"]
    assert (row["name"], row["wasted_cost"], row["wasted_hours"]) == ("research", cost, weekends * 128 * 60)
    assert row["cost"] == pytest.approx(cost + (weekends - 1) * 128 * 24 * 3.06)
    _, table, err = run(capsys, "--from", path, "--prices", prices)
    assert f"{cost:,.2f}" in table
    assert err == ""


def test_by_kgpus_own_list_an_a100_costs_what_the_cloud_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = idle_fleet(tmp_path / "u.jsonl", 1)
    found = data(capsys, "--from", path)
    assert found["total"]["cost"] == pytest.approx(128 * 60 * 2.745)
    (price,) = found["prices"]
    assert (price["per_gpu_hour"], price["basis"]) == (2.745, "model")
    assert "the node's type is not recorded" in price["assumed"]
    _, _, err = run(capsys, "--from", path)
    assert "note: a price is assumed: NVIDIA-A100-SXM4-40GB at the model's list price" in err


def test_a_list_that_fits_nothing_is_told_and_does_not_ask_for_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (other := tmp_path / "other.csv").write_text("product,perGpuHour\nA100,3.06\n")
    _, _, err = run(capsys, "--from", idle_fleet(tmp_path / "u.jsonl", 1), "--prices", other)
    assert "other.csv has no row for NVIDIA-A100-SXM4-40GB on nodes without a type" in err
    assert 'line 2 would fit, but for product "A100"' in err
    assert "with product NVIDIA-A100-SXM4-40GB or *A100*40GB*" in err
    assert "give your prices" not in err


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Half a day each: busy, held and idle, free, down."""
    device = Device(energy_uj=0)
    device.spend(DAY / 2, holder("a", namespace="web", labels={"team": "x"}), busy=0.5, sm=0.25, watts=400)
    device.spend(DAY / 2, holder("b", namespace="ml"), state=UsageState.HELD_IDLE, watts=100)
    device.spend(DAY / 2, watts=50).spend(DAY / 2, state=UsageState.DOWN)
    return write(tmp_path / "u.jsonl", device, nodes=[node(instance_type="own")], labels=("team",))


def test_the_table(mixed: Path, prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--from", mixed, "--prices", prices)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "2026-07-20T00:00:00Z to 2026-07-22T00:00:00Z, costs in USD",
        "",
        "NAMESPACE  GPU-HOURS  HELD   BUSY  EFFECTIVE  WASTED    COST  OF IT WASTED",
        "ml              12.0  12.0      -          -    12.0   36.72         36.72",
        "web             12.0  12.0  50.0%      25.0%     0.0   36.72          0.00",
        "__down__        12.0     -      -          -    12.0   36.72         36.72",
        "__idle__        12.0     -      -          -    12.0   36.72         36.72",
        "TOTAL           48.0  24.0  50.0%      25.0%    36.0  146.88        110.16",
        "",
        "wasted: 75.0% of all GPU time was free, down, or held and not used",
    ]


def test_json_has_null_for_what_is_not_known(mixed: Path, prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "--from", mixed, "--prices", prices, "--tariff", "0.2", "--pue", "1.5")
    ml, web, _, idle = found["rows"]
    assert (found["version"], found["by"], found["currency"], found["notes"]) == (1, "namespace", "USD", [])
    assert (ml["busy_ratio"], ml["effective_ratio"], ml["cost_per_useful_hour"]) == (None, None, None)
    assert (web["busy_ratio"], web["effective_ratio"], web["cost_per_useful_hour"]) == (0.5, 0.25, 12.24)
    assert (web["energy_kwh"], web["energy_cost"]) == (4.8, 1.44)
    assert (idle["kind"], idle["held_hours"], idle["energy_kwh"]) == ("idle", None, 0.6)
    assert found["total"]["waste_ratio"] == 0.75
    assert data(capsys, "--from", mixed)["rows"][0]["energy_cost"] is None


@pytest.mark.parametrize(
    "options", [(), ("--basis", "busy"), ("--idle", "weighted"), ("--idle", "platform"), ("--sharing", "reserve")]
)
def test_what_was_wasted_is_one_figure_everywhere(
    mixed: Path, prices: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--from", mixed, "--prices", prices, *options)
    found = data(capsys, *asked)
    total = found["total"]
    assert (total["wasted_hours"], total["wasted_cost"], total["waste_ratio"]) == (36, 110.16, 0.75)
    assert sum(row["wasted_hours"] for row in found["rows"]) == pytest.approx(36)
    assert sum(row["wasted_cost"] for row in found["rows"]) == pytest.approx(110.16)
    assert all(row["wasted_cost"] <= row["cost"] for row in found["rows"])
    _, table, _ = run(capsys, *asked)
    assert "wasted: 75.0%" in table.splitlines()[-1]
    (line,) = (line for line in table.splitlines() if line.startswith("TOTAL"))
    assert line.split()[-3::2] == ["36.0", "110.16"]
    _, text, _ = run(capsys, *asked, "-o", "csv")
    assert sum(float(row["wasted_cost"]) for row in csv.DictReader(io.StringIO(text))) == pytest.approx(110.16)


def test_csv_has_the_keys_of_json(mixed: Path, prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--from", mixed, "--prices", prices, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    keys = data(capsys, "--from", mixed)["rows"][0]
    assert [*rows[0]] == [*keys, "currency"]
    assert [(row["name"], row["cost"], row["busy_ratio"]) for row in rows] == [
        ("ml", "36.72", ""), ("web", "36.72", "0.5"), ("__down__", "36.72", ""), ("__idle__", "36.72", ""),
    ]  # fmt: skip


def test_a_window_before_the_recordings_end_or_by_date(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--since", "1d"), ("--since", "2026-07-21"), ("--since", "24h", "--until", "0s")):
        assert [row["name"] for row in data(capsys, "--from", mixed, *words)["rows"]] == ["__down__", "__idle__"]
    found = data(capsys, "--from", mixed, "--until", "2026-07-20T03:00:00+02:00")
    assert (found["to"], found["total"]["gpu_hours"]) == ("2026-07-20T01:00:00Z", 1.0)


def test_nothing_in_that_time_is_exit_code_3(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--from", mixed, "--since", "2027-01-01")
    assert (code, out) == (3, "")
    assert "there is nothing from 2027-01-01T00:00:00Z" in err
    assert "the recording is from 2026-07-20T00:00:00Z to 2026-07-22T00:00:00Z" in err


def test_a_recording_without_time_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--from", write(tmp_path / "u.jsonl"))
    assert (code, out) == (3, "")
    assert "nothing is recorded of that time" in err


def test_unknown_energy_is_never_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "u.jsonl", Device().spend(DAY, holder()))
    found = data(capsys, "--from", path, "--tariff", "0.2")
    for row in (*found["rows"], found["total"]):
        assert (row["energy_kwh"], row["energy_cost"], row["memory_gib_hours"]) == (None, None, None)
    assert "EnergyUnknown" in {one["reason"] for one in found["notes"]}
    _, table, err = run(capsys, "--from", path, "--tariff", "0.2")
    assert table.splitlines()[-3].split()[-2:] == ["-", "-"]
    assert "energy is not recorded for 24.0 of 24.0 GPU hours" in err
    assert "EnergyUnknown" not in {one["reason"] for one in data(capsys, "--from", path)["notes"]}


def test_a_recording_comes_by_standard_input(
    mixed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = data(capsys, "--from", mixed)
    with mixed.open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert data(capsys, "--from", "-") == said


def test_labels_of_pods_are_rows(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {row["name"] for row in data(capsys, "--from", mixed, "--by", "label:team")["rows"]}
    assert names == {"x", "(no label)", "__idle__", "__down__"}


def test_hostile_names_drive_neither_terminal_nor_spreadsheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "u.jsonl", Device().spend(60, holder(namespace="=cmd|'/c calc'!A0\x1b[2J\nx")))
    _, table, _ = run(capsys, "--from", path)
    _, cells, _ = run(capsys, "--from", path, "-o", "csv")
    assert "\x1b" not in table + cells
    assert next(csv.DictReader(io.StringIO(cells)))["name"].startswith("'=")
    assert len(cells.splitlines()) == 2


REFUSED = {
    ("--by", "teams"): 'there are no rows by "teams"',
    ("--by", "label:app"): 'the recording has no label "app"',
    ("--since", "soon"): "--since 'soon' is no moment",
    ("--since", "-3h"): "--since '-3h' is no moment",
    ("--until", "3x"): "--until '3x' is no moment",
    ("--since", "1h", "--until", "2h"): "--since is not before --until",
    ("--tariff", "0.2/kWh"): "--tariff '0.2/kWh' can't be",
    ("--tariff", "nan"): "--tariff 'nan' can't be",
    ("--tariff", "0.2", "--pue", "0.5"): "--pue '0.5' can't be",
    ("--pue", "1.4"): "--pue 1.4 alone changes nothing",
    ("--idle", "evenly"): "Invalid value for '--idle'",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_cannot_be_meant_is_refused(
    words: tuple[str, ...], mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--from", mixed, *words)
    assert (code, out) == (2, "")
    assert REFUSED[words] in err
    assert "to do: " in err


def test_a_file_that_is_no_recording_is_refused(
    tmp_path: Path, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (prices, tmp_path / "none", tmp_path):
        code, _, err = run(capsys, "--from", path)
        assert code == 2
        assert err.count("\n") == 3


def test_what_was_wrong_and_bearable_is_told(mixed: Path, prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed.write_bytes(mixed.read_bytes()[:-20])
    found = data(capsys, "--from", mixed, "--prices", prices)
    assert [note["reason"] for note in found["notes"]] == ["RecordingCutOff"]
    _, _, err = run(capsys, "--from", mixed, "--prices", prices)
    assert "is cut off and was left out" in err


def test_each_word_of_the_options_is_one_that_the_component_has() -> None:
    from kgpu.cli import usage
    from kgpu.usage.plan import IdlePolicy
    from kgpu.usage.prices import NodePriceRule
    from kgpu.usage.shares import Basis, SharingMode

    pairs = (
        (usage.IDLE_WORDS, IdlePolicy), (usage.BASIS_WORDS, Basis), (usage.SHARING_WORDS, SharingMode),
        (usage.NODE_PRICE_WORDS, NodePriceRule),
    )  # fmt: skip
    assert all({*words} == {*kind} for words, kind in pairs)


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "what-do-gpus-cost.md").read_text()
BLOCKS = [block for _, block in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]


def test_the_pages_recording_gives_the_pages_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_text(BLOCKS[0])
    assert run(capsys, "--from", path) == (0, BLOCKS[2], "")


def test_the_pages_prices_are_taken(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (one for one in BLOCKS if one.startswith("instanceType"))
    path = tmp_path / "prices.csv"
    path.write_text(block)
    (price,) = data(capsys, "--from", mixed, "--prices", path)["prices"]
    assert price["source"] == f"{path}, line 4"
    assert price["per_gpu_hour"] == pytest.approx(250_000 / (4 * 8760), abs=1e-6)
