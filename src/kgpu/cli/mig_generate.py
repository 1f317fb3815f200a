"""``kgpu mig generate-config``: a config file for this node's GPUs, with mig-parted's names and rules."""

from __future__ import annotations

import json
from typing import Final

import click

from kgpu.cli import _mig
from kgpu.cli._common import GoFlagsCommand, root_option, run_async

EXAMPLES: Final = """
kgpu mig generate-config
kgpu mig generate-config -f config.yaml
kgpu mig generate-config -o json
"""


@click.command("generate-config", cls=GoFlagsCommand, examples=EXAMPLES)
@click.option(
    "-f", "--output-file", "file", metavar="FILE", default="", envvar="MIG_PARTED_OUTPUT_FILE",
    help="Where to write it. Default: standard output.",
)  # fmt: skip
@_mig.format_option("The file's form.")
@root_option
def generate_config(*, file: str, output: str, root: str) -> None:
    """Print every config that this node's GPUs can have: all slices alike, balanced, or none."""
    from kgpu.formats import yaml_text
    from kgpu.mig.generate import generate, left_out

    gpus = run_async(_mig.node_gpus(root))
    document = generate(gpus)
    for why in left_out(gpus):
        _mig.warn(f"{why}: it is left out")
    text = json.dumps(document, indent=2) + "\n" if output == "json" else yaml_text.write(document)
    if file:
        _mig.write_file(file, text)
    else:
        click.echo(text, nl=False)
