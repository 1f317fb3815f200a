"""The front door: light, complete in its table, and every failure in the form that fits it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import click
import pytest

from kgpu import __version__
from kgpu.base.errors import LabError
from kgpu.cli import main as front
from kgpu.cli.main import COMMANDS, PROGRAMS, CommandEntry, LazyGroup, main

HEAVY = {
    "asyncio",
    "google.protobuf",
    "grpclib",
    "kgpu.agent",
    "kgpu.deviceplugin.run",
    "kgpu.discovery.run",
    "kgpu.kube",
    "lightkube",
    "msgspec",
    "pynvml",
    "rich",
    "ssl",
    "yaml",
}


def run(*words: str, env: dict[str, str] | None = None, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kgpu", *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        **kwargs,
    )


@pytest.mark.parametrize("words", [["--help"], ["version"], ["completion", "bash"], ["agent", "--help"]])
def test_what_needs_nothing_imports_nothing_heavy(words):
    code = (
        "import sys, contextlib, io\n"
        "from kgpu.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): code = main(['kgpu', *sys.argv[1:]])\n"
        "print(code, *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300, check=True)
    code, *modules = done.stdout.split()
    assert code == "0", done.stderr
    assert not HEAVY & set(modules)


def test_help_lists_every_command_with_its_line(capsys):
    assert main(["kgpu", "--help"]) == 0
    out = capsys.readouterr().out
    for entry in COMMANDS:
        assert (entry.name in out) is not entry.hidden
        assert (entry.help in out) is not entry.hidden
    assert "Examples:\n  kgpu " in out
    assert main(["kgpu"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_row_leads_to_a_command_that_explains_itself(entry: CommandEntry, capsys):
    assert importlib.util.find_spec(entry.module) is not None
    assert main(["kgpu", entry.name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: kgpu {entry.name} ")
    assert "Examples:\n" in out


def test_version_as_data(capsys):
    assert main(["kgpu", "version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == __version__
    assert main(["kgpu", "version"]) == 0
    assert capsys.readouterr().out == f"kgpu {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["agnet"], 'did you mean "agent"?'),
        (["completely-else"], "expected: one of: agent, "),
        (["--frobnicate"], "--frobnicate"),
        (["version", "--outputt", "json"], "--output"),
        (["version", "-o", "xml"], "'xml' is not one of"),
        (["completion"], "Missing argument"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["version", "surplus"], "surplus"),
    ],
)
def test_bad_input_is_three_parts_and_exit_code_two(words, says, capsys):
    assert main(["kgpu", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    lines = err.rstrip("\n").split("\n")
    assert lines[0].startswith("kgpu: ")
    assert [line.split(":")[0] for line in lines[1:]] == ["  expected", "  to do"]
    assert "Traceback" not in err


def failing(problem: BaseException) -> LazyGroup:
    @click.command()
    def fail() -> None:
        raise problem

    group = LazyGroup("kgpu", entries=())
    group.add_command(fail, "fail")
    return group


@pytest.mark.parametrize(
    ("problem", "code", "says"),
    [
        (LabError("a", "b", "c"), 2, "kgpu: a\n  expected: b\n  to do: c\n"),
        (ExceptionGroup("g", [LabError("a", "b", "c")]), 2, "kgpu: a\n"),
        (FileNotFoundError(2, "No such file or directory", "/no/such"), 2, "can't use /no/such: No such file"),
        (PermissionError(13, "Permission denied", b"/root/x"), 2, "can't use /root/x"),
        (KeyError("oops"), 1, "unexpected error: KeyError: 'oops'\n"),
        (OSError("no file in it"), 1, "unexpected error: OSError"),
        (ExceptionGroup("g", [LabError("a", "b", "c"), ValueError("v")]), 1, "unexpected error: LabError"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (click.exceptions.Exit(7), 7, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 2, "can't write to the output: No space left on device"),
    ],
)
def test_how_each_failure_ends(problem, code, says, monkeypatch, capsys):
    monkeypatch.setattr(front, "cli", failing(problem))
    monkeypatch.setattr(front, "_forget_output", lambda: None)
    monkeypatch.delenv("KGPU_DEBUG", raising=False)
    assert main(["kgpu", "fail"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert bool(err) == bool(says)
    assert "Traceback" not in err
    if code == 1:
        assert "KGPU_DEBUG=1" in err


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(front, "cli", failing(KeyError("oops")))
    monkeypatch.setenv("KGPU_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["kgpu", "fail"])


def test_a_reader_that_goes_away_is_not_an_error_message():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kgpu", "completion", "bash"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize("words", [["version"], ["--help"], ["lab", "hw", "inject", "--help"]])
def test_output_that_has_no_room_is_an_obstacle_and_no_defect(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kgpu", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300
        )
    assert done.returncode == 2
    assert "No space left on device\n  expected: " in done.stderr
    assert "\n  to do: " in done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize("program", ["kgpu", *PROGRAMS])
def test_every_name_tells_its_version(program, capsys):
    for word in ("--version", "-v"):
        assert main([program, word]) == 0
        assert capsys.readouterr().out == f"kgpu {__version__}\n"


@pytest.mark.parametrize(("program", "words"), PROGRAMS.items())
def test_a_replaced_programs_name_puts_its_words_in_front(program, words, monkeypatch):
    seen: list[str] = []

    def record(name: str, arguments: list[str]) -> int:
        seen.extend([name, *arguments])
        return 0

    monkeypatch.setattr(front, "_run", record)
    assert main([f"/usr/bin/{program}", "--flag"]) == 0
    assert seen == [program, *words, "--flag"]


def test_any_other_name_is_kgpu(monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(front, "_run", lambda name, arguments: seen.append(name) or 0)
    main(["/opt/gpu-tool", "version"])
    main(["/src/kgpu/__main__.py", "version"])
    assert seen == ["kgpu", "kgpu"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_and_installation(shell, tmp_path):
    printed = run("completion", shell)
    assert "_KGPU_COMPLETE" in printed.stdout
    installed = run("completion", shell, "--install", env={"HOME": str(tmp_path)})
    assert installed.returncode == 0, installed.stderr
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.read_text().strip() == printed.stdout.strip()


def test_completion_offers_commands_without_importing_them():
    done = run(env={"_KGPU_COMPLETE": "bash_complete", "COMP_WORDS": "kgpu la", "COMP_CWORD": "1"})
    assert done.stdout.split() == ["plain,labels", "plain,lab"]
