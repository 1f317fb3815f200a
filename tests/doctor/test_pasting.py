"""Every remedy of every example, as bash and an interactive zsh take it: parsed by both, and looked at word by word."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from kgpu.base.remedy import is_command
from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from tests.doctor.example import Example, all_examples
from tests.doctor.pasting import problems
from tests.doctor.shells import parsed, zsh

EXAMPLES = all_examples()


@functools.cache
def told(name: str) -> tuple[Finding, ...]:
    """Whatever is told of an example that is broken, in one way or the other."""
    (example,) = (one for one in EXAMPLES if one.name == name)
    halves = [example.broken, *([example.unlike] if example.unlike else [])]
    reports = [diagnose(example.snapshot(objects), strict=True) for objects in halves]
    return tuple(one for report in reports for root in report.findings for one in root.all())


def commands() -> list[str]:
    return sorted({step for one in EXAMPLES for found in told(one.name) for step in found.remedy if is_command(step)})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.name)
def test_a_remedy_can_be_pasted_and_is_understood(example: Example) -> None:
    assert [what for found in told(example.name) for what in problems(found.remedy)] == []


def test_bash_parses_every_command() -> None:
    bash = shutil.which("bash")
    assert bash
    assert len(commands()) > 300
    assert parsed(bash, commands()) == {}


def test_zsh_parses_every_command(tmp_path: Path) -> None:
    assert parsed(zsh(tmp_path), commands()) == {}


@pytest.mark.parametrize(
    ("remedy", "problem"),
    [
        (["kubectl get nodes # all"], "a shell fills in #"),
        (["fuser -v /dev/nvidia*"], "a shell fills in /dev/nvidia*"),
        (["kubectl get pods -o jsonpath={.items[0]}"], "a shell fills in"),
        (["mlxlink -d mlx5_core?0000:5e:00.0"], "a shell fills in"),
        (["grep =NVRM f"], "a shell fills in =NVRM"),
        (["ls /usr/lib/{a,b}"], "a shell fills in"),
        (['echo "no devices!"'], "a command of before"),
        (["kubectl cordon n; then as the table says"], "'then' is no program"),
        (["kubectl label node n a=b --overwrite, or strategy mixed"], "a sentence goes on"),
        (["kubectl edit configmap counters: add a line"], "a sentence goes on"),
        (["kubectl drain NODE"], "nobody says above it what NODE is"),
        (["on the node: nvidia-smi -L"], "a command within a sentence"),
        (["first", "kubectl get pods\nkubectl delete pod a"], "several lines"),
    ],
)
def test_a_bad_remedy_is_refused(remedy: list[str], problem: str) -> None:
    (first, *_) = problems(remedy)
    assert problem in first


@pytest.mark.parametrize(
    "remedy",
    [
        ["with its name in place of NODE:", "kubectl drain NODE"],
        ["kubectl get node n -o jsonpath='{.items[0].status}'"],
        ["on the node:", "sh -c 'fuser -v /dev/nvidia*'"],
        ["apt install linux-headers-$(uname -r) && modprobe nvidia"],
        ["NCCL_DEBUG=INFO torchrun x", "kubectl get pods -A | grep -E 'a|b' | head -5; kgpu doctor"],
    ],
)
def test_a_good_one_is_not(remedy: list[str]) -> None:
    assert list(problems(remedy)) == []


def test_both_shells_refuse_what_they_can_t_parse(tmp_path: Path) -> None:
    bad = ["kubectl get pods | ", "echo 'a", "kubectl cordon n; then as the table says"]
    assert list(parsed(str(shutil.which("bash")), bad)) == bad
    assert list(parsed(zsh(tmp_path), bad)) == bad
