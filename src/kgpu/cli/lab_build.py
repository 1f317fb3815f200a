"""``kgpu lab build``: make everything that the labs are built from, ahead of time, and say where it is."""

from __future__ import annotations

from typing import Final

import click

from kgpu.cli._common import ExampleCommand, output_option, print_json

EXAMPLES: Final = """
kgpu lab build
kgpu lab build --embedded
kgpu lab build --install-tools -o json
"""
TITLES: Final = {"native": "simulated driver", "programs": "programs of the real cluster", "kubectl": "kubectl",
                 "helm": "Helm", "end_to_end": "Kubernetes' end-to-end tests"}  # fmt: skip


@click.command("build", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--install-tools", is_flag=True, help="First install what is missing, with apt-get and pip.")
@click.option("--embedded", is_flag=True, help="Only what the embedded lab needs: the simulated driver and kubectl.")
@click.option("--helm", is_flag=True, help="Also Helm, which the tests of the chart use.")
@click.option("--end-to-end", is_flag=True, help="Also Kubernetes' end-to-end tests, which `make conformance` runs.")
@output_option()
def build(*, install_tools: bool, embedded: bool, helm: bool, end_to_end: bool, output: str) -> None:
    """Build the simulated driver and the programs of the real cluster, once; later calls find them in the cache."""
    from kgpu.hw.simulator.build import native_dir
    from kgpu.lab import progress
    from kgpu.lab.real import build as real_build

    reporter = progress.for_terminal()
    if install_tools and not embedded:
        real_build.install_tools(reporter)
    with reporter.step("the simulated driver"):
        native = native_dir()
    if embedded:
        programs = {"native": str(native), "kubectl": real_build.ensure_kubectl(reporter)}
    else:
        programs = {"native": str(native), "programs": str(real_build.ensure_binaries(reporter))}
    if helm:
        programs["helm"] = real_build.ensure_helm(reporter)
    if end_to_end:
        programs["end_to_end"] = str(real_build.ensure_end_to_end(reporter))
    if output == "json":
        print_json(programs)
    else:
        click.echo("\n".join(f"{TITLES[name]}: {where}" for name, where in programs.items()))
