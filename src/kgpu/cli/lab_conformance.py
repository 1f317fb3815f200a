"""``kgpu lab conformance``: Kubernetes' own conformance tests on labs that are made for it, and a table."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

import click

from kgpu.base.signals import interrupts
from kgpu.cli._common import ExampleCommand, output_option, print_json
from kgpu.lab import port
from kgpu.lab.conformance import skips

EXAMPLES: Final = """
kgpu lab conformance --lab embedded --fast
kgpu lab conformance --sig apps --focus "Job should" --keep ./out
kgpu lab conformance --lab embedded --claims
kgpu lab conformance -o json
"""


@click.command("conformance", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--lab", "labs", type=click.Choice(port.KINDS), multiple=True, help="Which kinds of lab. Default: both.")
@click.option("--sig", "sigs", type=click.Choice(skips.SIGS), multiple=True, help="Whose tests. Default: all of these.")
@click.option("--focus", default="", metavar="REGEX", help="Only tests with this in their name.")
@click.option("--fast", is_flag=True, help="Only what `make test` runs: the API's tests that take seconds.")
@click.option("--claims", is_flag=True, help="The tests of claims that need no kubelet, in place of conformance.")
@click.option("--limit", "limit_s", type=click.IntRange(60), default=skips.LIMIT_S, show_default=True,
              metavar="SECONDS", help="When a process of e2e.test gives up.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, skips.PROCESSES), default=skips.PROCESSES, show_default=True,
              help="How many processes run tests beside each other.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Keep what e2e.test printed and reported.")  # fmt: skip
@output_option()
def conformance(
    *, labs: tuple[str, ...], sigs: tuple[str, ...], focus: str, fast: bool, claims: bool, limit_s: int,
    processes: int, keep: Path | None, output: str,
) -> None:  # fmt: skip
    """Run Kubernetes' conformance tests on labs that are made for it; exit 1 when one fails.

    The tests are e2e.test of the version that the real lab runs, built from its source when first needed.
    """
    from kgpu.lab import progress
    from kgpu.lab.conformance import render
    from kgpu.lab.conformance.model import ResultState
    from kgpu.lab.conformance.plan import CONFORMANCE_TESTS
    from kgpu.lab.conformance.run import ConformanceOptions, run

    usual, slow = (skips.SIGS, skips.SLOW_CLAIMS) if claims else (skips.FAST_SIGS, skips.SLOW)
    order = ConformanceOptions(
        sigs=sigs or (usual if fast else skips.SIGS),
        of=skips.CLAIMS if claims else CONFORMANCE_TESTS,
        focus=focus,
        slow=slow if fast else "",
        limit_s=limit_s,
        processes=processes,
        keep=keep,
    )
    reporter = progress.for_terminal()
    runs = []
    with interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as check:  # each ends tests and lab before it ends us
        for kind in labs or port.KINDS:
            check()
            runs.append(run(kind, order, reporter))
    if output == "json":
        print_json({"runs": [render.to_builtins(run.lab, run.results, wall_s=run.wall_s) for run in runs]})
    else:
        click.echo("\n\n".join(render.text(run.lab, run.results, wall_s=run.wall_s) for run in runs))
    sys.exit(any(result.state is ResultState.FAILED for lab_run in runs for result in lab_run.results))
