"""``kgpu usage --prometheus``: what is asked of whom, what it prints, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from tests.usage.prometheus.scraped import Scrapes
from tests.usage.prometheus.stand_in import HTML, StandIn, refusal, serving

WHO = {"UUID": "GPU-1", "namespace": "team", "pod": "p", "container": "main", "uid": "u1"}
BOOT = {"node": "n1", "boot": "b"}
HOUR = 3600


def scraped(hours: int) -> Scrapes:
    """Hours until now of an L4, held all the time and busy in half of it; an hour before that, too."""
    scrapes, now = Scrapes(), int(time.time())
    begun = now - (hours + 1) * HOUR
    for at in range(begun, now, 30):
        passed = float(at - begun)
        put = {
            "kgpu_usage_device_info": ({**BOOT, "UUID": "GPU-1", "product": "NVIDIA-L4", "memory_mib": "23034"}, 1.0),
            "kgpu_usage_uptime_seconds": (BOOT, 1000 + passed),
            "kgpu_usage_looked_timestamp_seconds": (BOOT, float(at)),
            "kgpu_usage_state_seconds_total": ({"UUID": "GPU-1", "state": "busy"}, passed),
            "kgpu_usage_held_seconds_total": (WHO, passed),
            "kgpu_usage_busy_seconds_total": (WHO, passed / 2),
            "kgpu_usage_holder_info": (
                {**WHO, "boot": "b", "owner": "Job/train", "sharing": "whole", "label_app_kubernetes_io_name": "x"}, 1.0
            ),
        }  # fmt: skip
        for name, (labels, value) in put.items():
            scrapes.put(name, {**labels, "instance": "n1", "cluster": "prod"}, at + 0.5, value)
    return scrapes


@pytest.fixture
def server() -> Iterator[StandIn]:
    with serving(StandIn(scraped(2))) as stand_in:
        yield stand_in


@pytest.fixture
def usage(server: StandIn, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["kgpu", "usage", "--prometheus", server.url, *words])
        return (code, *capsys.readouterr())

    return run


def test_two_hours_of_a_gpu(usage: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = usage("--since", "2h", "--by", "owner", "-o", "json")
    assert code == 0, err
    data = json.loads(out)
    (row,) = data["rows"]
    assert (row["name"], row["busy_ratio"]) == ("team/Job/train", pytest.approx(0.5, abs=1e-3))
    assert row["gpu_hours"] == pytest.approx(2, abs=0.02)
    assert row["cost"] == pytest.approx(2 * 0.805, abs=0.02)
    assert [line for line in err.splitlines() if "a price is assumed" not in line] == []


def test_a_label_is_found_by_its_own_key(usage: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = usage("--since", "1h", "--by", "label:app.kubernetes.io/name", "-o", "json")
    assert (code, json.loads(out)["by"], json.loads(out)["rows"][0]["name"]) == (0, "label:app.kubernetes.io/name", "x")
    code, _, err = usage("--since", "1h", "--by", "label:team")
    assert (code, 'the recording has no label "team"' in err) == (2, True)


def test_without_since_it_is_a_week_and_what_was_not_scraped_is_told(
    usage: Callable[..., tuple[int, str, str]], server: StandIn
) -> None:
    code, out, err = usage("-o", "json")
    assert code == 0
    assert "note: of 1 of 1 node (n1) nothing was scraped from" in err
    assert json.loads(out)["total"]["gpu_hours"] == pytest.approx(3, abs=0.1)
    assert any(
        "WindowNotCovered" in str(note) or "nothing was scraped" in str(note) for note in json.loads(out)["notes"]
    )
    assert "step=300" in server.seen[0][0]


def test_only_series_that_match_are_asked_for(usage: Callable[..., tuple[int, str, str]], server: StandIn) -> None:
    code, _, err = usage("--prometheus-match", "cluster=prod", "--since", "1h")
    assert code == 0, err
    assert all("cluster%3D%22prod%22" in path for path, _ in server.seen)
    code, _, err = usage("--prometheus-match", "cluster=other", "--since", "1h")
    assert (code, "has nothing of kgpu's usage" in err, 'with cluster="other"' in err) == (2, True, True)


def test_a_token_comes_from_a_file_and_is_never_shown(
    usage: Callable[..., tuple[int, str, str]], server: StandIn, tmp_path: Path
) -> None:
    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("s3cret-token\n")
    password.write_text("me:s3cret-password\n")
    assert usage("--prometheus-token-file", str(token), "--since", "1h")[0] == 0
    assert server.seen[0][1]["authorization"] == "Bearer s3cret-token"
    server.answers = [(401, "text/plain", b"no")]
    code, out, err = usage("--prometheus-auth-file", str(password), "--since", "1h")
    assert server.seen[-1][1]["authorization"].startswith("Basic ")
    assert (code, "refuses with 401" in err) == (2, True)
    assert "s3cret" not in out + err
    assert "czNjcmV0" not in out + err
    token.write_text("two words")
    assert "has no token" in usage("--prometheus-token-file", str(token))[2]


def test_an_https_one_is_trusted_by_its_file_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    words = ["--prometheus", "https://127.0.0.1:1", "--prometheus-ca-file", str(tmp_path / "ca")]
    assert main(["kgpu", "usage", *words]) == 2
    assert "correct --prometheus-ca-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer", [HTML, (404, "text/plain", b""), refusal(500, "internal", "disk"), (302, "text/html", b"")]
)
def test_another_program_is_an_error_in_three_parts(
    usage: Callable[..., tuple[int, str, str]], server: StandIn, answer: Any
) -> None:
    server.answers = [answer]
    code, out, err = usage("--since", "1h")
    assert (code, out) == (2, "")
    assert "expected:" in err
    assert "to do:" in err


def test_one_that_goes_away_in_between_is_no_half_report(
    usage: Callable[..., tuple[int, str, str]], server: StandIn
) -> None:
    server.spoil = lambda result: server.answers.append((410, "text/plain", b"gone")) or result
    code, out, err = usage("--since", "1h")
    assert (code, out, "answers 410" in err) == (2, "", True)


def test_figures_that_can_t_be_are_told(usage: Callable[..., tuple[int, str, str]], server: StandIn) -> None:
    def spoil(result: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for series in (one for one in result if len(one["values"]) > 6):
            series["values"][3][1], series["values"][5][1] = "NaN", "-5"
        return result

    server.spoil = spoil
    code, out, err = usage("--since", "1h", "-o", "json")
    assert code == 0
    assert "values can't be a counter's, and were left out" in err
    assert json.loads(out)["total"]["gpu_hours"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--from", "x"], "--from and --prometheus are both given"),
        (["--kubeconfig", "x"], "--kubeconfig and --prometheus are both given"),
        (["--context", "x"], "--context and --prometheus are both given"),
        (["--prometheus", ""], "no address of a Prometheus"),
        (["--prometheus-token-file", "a", "--prometheus-auth-file", "b"], "are both given"),
        (["--prometheus-match", "x"], "matches nothing"),
        (["--since", "1h", "--until", "2h"], "--since is not before --until"),
        (["--since", "2999-01-01"], "--since is not before --until"),
    ],
)
def test_what_contradicts_is_refused(usage: Callable[..., tuple[int, str, str]], words: list[str], why: str) -> None:
    code, _, err = usage(*words)
    assert (code, why in err) == (2, True), err


@pytest.mark.parametrize(
    "flag", ["--prometheus-match", "--prometheus-token-file", "--prometheus-auth-file", "--prometheus-ca-file"]
)
def test_an_option_of_it_alone_changes_nothing_and_is_refused(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert main(["kgpu", "usage", "--from", "x", flag, "a=b"]) == 2
    assert f"{flag} alone changes nothing" in capsys.readouterr().err


def test_a_password_in_the_address_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kgpu", "usage", "--prometheus", "http://me:s3cret@127.0.0.1:1"]) == 2
    assert "s3cret" not in "".join(capsys.readouterr())
