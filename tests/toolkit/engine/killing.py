"""Ending a process for real at one of its steps on the disk: no exception handler, no cleanup, half-written data."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

STEPS = ("write", "link", "replace", "unlink", "fsync", "mkdir", "rmdir", "fchmod", "open")
KILLED = 77


def run_and_kill(action: Callable[[], Any], step: int) -> bool:
    """Run the action in a child that is ended at its ``step``-th step on the disk; False when it had fewer steps.

    A write that is hit writes half of its data first.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in {0, KILLED}, f"the child failed at step {step}: exit code {code}"
        return code == KILLED
    code = 1
    try:
        _install(step)
        action()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _install(step: int) -> None:
    left = [step]
    for name in STEPS:
        setattr(os, name, _counted(name, getattr(os, name), left))


def _counted(name: str, real: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR):
            return real(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            if name == "write":
                data = bytes(args[1])
                real(args[0], data[: len(data) // 2])
            os._exit(KILLED)
        return real(*args, **kwargs)

    return call
