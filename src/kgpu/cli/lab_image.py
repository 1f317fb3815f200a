"""``kgpu lab image``: make kgpu's own container image without a registry, and load it into a lab."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import click

from kgpu.base.errors import LabError
from kgpu.cli._common import ExampleCommand
from kgpu.cli._lab import open_lab, require_running, which_lab
from kgpu.cli.main import CommandEntry, LazyGroup

ENTRIES: Final = (
    CommandEntry("build", "kgpu.cli.lab_image", "build", "Make the image from this kgpu and this Python."),
    CommandEntry("import", "kgpu.cli.lab_image", "import_", "Load it into a real lab."),
)
EXAMPLES: Final = """
kgpu lab image build --output kgpu.tar
kgpu lab image import
"""


@click.group("image", cls=LazyGroup, entries=ENTRIES, examples=EXAMPLES)
def image_group() -> None:
    """The image that the chart asks for, made from this kgpu, this Python and their libraries, without a registry."""


@click.command("build", cls=ExampleCommand, examples="kgpu lab image build\nkgpu lab image build --output kgpu.tar")
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write the OCI archive. Default: it stays in the cache.",
)
def build(*, target: Path | None) -> None:
    """Make the image as an OCI archive, as `ctr images import`, `podman load` and `skopeo copy` read it."""
    from kgpu.lab import progress
    from kgpu.lab.real import kgpu_image

    archive = kgpu_image.ensure_image(progress.for_terminal())
    if target is not None:
        shutil.copyfile(archive, target)
    size = archive.stat().st_size / 1e6
    click.echo(f"{target or archive}: {', '.join(kgpu_image.NAMES)} ({size:.0f} MB)")


@click.command("import", cls=ExampleCommand, examples="kgpu lab image import\nkgpu lab image import --name second")
@which_lab
@click.argument("archive", required=False, type=click.Path(path_type=Path, dir_okay=False, exists=True))
def import_(*, name: str, folder: Path | None, archive: Path | None) -> None:
    """Load kgpu's image, or the OCI ARCHIVE that is named, into the node of a real lab."""
    from kgpu.lab.real import bootstrap, kgpu_image
    from kgpu.lab.real.cluster import RealLab

    lab = open_lab(name, folder)
    require_running(lab, folder)
    if not isinstance(lab, RealLab):
        raise LabError(
            f'the lab "{name}" is embedded: it has no container runtime',
            "a lab of real Kubernetes",
            '"kgpu lab up --real" makes one',
        )
    own = ", ".join(kgpu_image.NAMES)
    archive = archive or kgpu_image.ensure_image(lab.progress)
    with lab.progress.step(f"import {archive.name}"):
        bootstrap.import_archive(lab, archive.absolute())
    click.echo(f"Its pods find the image{f': {own}' if archive.parent == kgpu_image.cache_folder() else ''}.")
