"""Helper processes end with their parent, whatever they are doing."""

from __future__ import annotations

import os
import subprocess
import sys

HELPER = (
    "import os, sys, time; from kgpu.base.parent import end_with; end_with(int(sys.argv[1])); print('here', flush=True)"
)
HANGS = f"{HELPER}; time.sleep(1000)"
PARENT = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"


def test_a_helper_that_hangs_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, HANGS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "here\n"
        parent.kill()
        assert not parent.stdout.read(), "the helper's end of the pipe is closed when it has ended"


def test_a_helper_whose_parent_is_gone_already_does_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", HELPER, str(os.getpid() + 1)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
