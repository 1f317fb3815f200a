"""``kgpu crds``: print, install and remove the definitions of kgpu's kinds, from ClusterPolicy to GPUUsagePolicy.

``apply`` is over when the API server serves the kinds; ``delete`` removes nothing while there are objects that would go
with their definition, unless it is told to. Both do nothing where there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, KubeError
from kgpu.cli._common import ExampleGroup, check_kubeconfig, output_option, run_async, with_api
from kgpu.formats.names import KGPU, OPERATOR_FIELD_MANAGER, PART_OF_LABEL

if TYPE_CHECKING:
    from kgpu.kube.port import KubeApi, Object, Resource

F = TypeVar("F", bound=Callable[..., Any])

KIND: Final = "CustomResourceDefinition"
SUFFIXES: Final = (".yaml", ".yml", ".json")
PAUSE_S: Final = 0.1
SOME: Final = 5  # names in a message

EXAMPLES: Final = """
kgpu crds print
kgpu crds apply
kgpu crds delete
"""
PRINT_EXAMPLES: Final = """
kgpu crds print > crds.yaml
kgpu crds print -o json
"""
APPLY_EXAMPLES: Final = """
kgpu crds apply
kgpu crds apply -f crds.yaml --kubeconfig FILE
"""
DELETE_EXAMPLES: Final = """
kgpu crds delete
kgpu crds delete --unused
kgpu crds delete --force
"""


def _common(function: F) -> F:
    """Options of what talks to the API server."""
    return _path_option(_kubeconfig_option(_timeout_option(_debug_option(function))))


_path_option: Final = click.option(
    "-f",
    "--filepath",
    "paths",
    multiple=True,
    metavar="PATH",
    help="A file of definitions, or a folder of them; may be given several times. Default: kgpu's own.",
)
_kubeconfig_option: Final = click.option(
    "--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE", help="How to reach the API server."
)
_timeout_option: Final = click.option(
    "--timeout", default=60.0, show_default=True, type=click.FloatRange(min=0), help="Seconds to wait at most."
)
_debug_option: Final = click.option("--debug", is_flag=True, hidden=True, expose_value=False)


class KeptError(KubeError):
    """A definition that had better stay."""


@click.group(cls=ExampleGroup, examples=EXAMPLES)
def crds() -> None:
    """Install and remove the definitions of kgpu's kinds, from ClusterPolicy to GPUUsagePolicy."""


@crds.command("print", examples=PRINT_EXAMPLES)
@output_option("yaml", "json", default="yaml")
def print_(output: str) -> None:
    """Print the definitions."""
    from kgpu.cli._common import print_json
    from kgpu.formats import yaml
    from kgpu.formats.crd.definitions import crds as own

    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": own()})
    else:
        click.echo("---\n".join(yaml.dump(item) for item in own()), nl=False)


@crds.command(examples=APPLY_EXAMPLES)
@_common
def apply(paths: tuple[str, ...], kubeconfig: str, timeout: float) -> None:
    """Install the definitions, or bring them up to date, and wait until they are served."""
    wanted = definitions(paths)
    check_kubeconfig(click.get_current_context(), kubeconfig)
    run_async(with_api(kubeconfig, lambda api: install(api, wanted, timeout)))


@crds.command(examples=DELETE_EXAMPLES)
@_common
@click.option("--force", is_flag=True, help="Also when there are objects: they are deleted too.")
@click.option("--unused", is_flag=True, help="Leave what has objects or was not installed by kgpu.")
def delete(paths: tuple[str, ...], kubeconfig: str, timeout: float, *, force: bool, unused: bool) -> None:
    """Remove the definitions."""
    if force and unused:
        raise ConfigError(
            "--force and --unused contradict each other",
            "--force to delete objects too, --unused to leave definitions that have some",
            "leave one of them out",
        )
    wanted = definitions(paths)
    check_kubeconfig(click.get_current_context(), kubeconfig)
    run_async(with_api(kubeconfig, lambda api: remove(api, wanted, timeout, force=force, unused=unused)))


def definitions(paths: Sequence[str]) -> list[Object]:
    """The definitions in these files and folders, kgpu's own when there are none. Raises ConfigError."""
    from kgpu.formats import yaml
    from kgpu.formats.crd.definitions import crds as own

    documents = [
        _checked(item, file)
        for path in paths
        for file in _files(Path(path))
        for item in yaml.load_all(file.read_bytes(), source=str(file))
        if item is not None
    ]
    if paths and not documents:
        raise ConfigError(
            f"there is no definition in {', '.join(paths)}", f"objects of kind {KIND}", "correct --filepath"
        )
    return documents or own()


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    return [path]


def _checked(item: Any, file: Path) -> Object:
    kind = item.get("kind") if isinstance(item, dict) else None
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if kind == KIND and isinstance(name, str) and name:
        return dict(item)
    raise ConfigError(
        f"{file} has a document that is no definition (its kind is {kind if isinstance(kind, str) else 'missing'})",
        f"objects of kind {KIND}, with a name",
        "take the document out, or leave --filepath out",
    )


def _resource() -> Resource:
    from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS

    return CUSTOM_RESOURCE_DEFINITIONS


async def install(api: KubeApi, wanted: Sequence[Object], seconds: float) -> None:
    """Apply the definitions and wait until they are served. Raises KubeError."""
    for item in wanted:
        await api.apply(_resource(), item, manager=OPERATOR_FIELD_MANAGER)
    late = KubeError(
        f"the API server does not serve every definition after {seconds:g} s",
        "the condition Established on each",
        "see `kubectl describe crd`, and run the command again",
    )
    await _until(api, wanted, established, seconds=seconds, word="installed", late=late)


def established(crd: Object | None) -> bool:
    """Whether the API server serves it. Raises KubeError when it has refused the names."""
    status = (crd or {}).get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    by_type = {item.get("type"): item for item in conditions or () if isinstance(item, dict)}
    names = by_type.get("NamesAccepted", {})
    if names.get("status") == "False":
        metadata = (crd or {}).get("metadata") or {}
        raise KubeError(
            f"the API server does not take the names of {metadata.get('name')}: {names.get('message')}",
            "names that no other definition has",
            "delete the other definition",
        )
    return by_type.get("Established", {}).get("status") == "True"


async def remove(api: KubeApi, wanted: Sequence[Object], seconds: float, *, force: bool, unused: bool = False) -> None:
    """Remove these definitions and wait until they are gone. ``unused``: keep those in use, and say so.

    Raises KubeError.
    """
    existing = []
    for item in wanted:
        crd = await api.get(_resource(), item["metadata"]["name"])
        if crd is None:
            click.echo(f"{item['metadata']['name']} is not there")
            continue
        try:
            if unused:
                _check_own(crd)
            await _check_unused(api, crd, force=force)
        except KeptError as error:
            if not unused:
                raise
            click.echo(f"{item['metadata']['name']} stays: {error.what}")
        else:
            existing.append(crd)
    for item in existing:
        await api.delete(_resource(), item["metadata"]["name"])
    late = KubeError(
        f"the definitions are still there after {seconds:g} s",
        "no object with a finalizer that nobody takes away",
        "see `kubectl describe crd` for what holds them",
    )
    await _until(api, existing, lambda crd: crd is None, seconds=seconds, word="deleted", late=late)


async def _until(
    api: KubeApi,
    wanted: Sequence[Object],
    reached: Callable[[Object | None], bool],
    *,
    seconds: float,
    word: str,
    late: KubeError,
) -> None:
    """Wait until every definition is as it should be, and say so of each. Raises ``late``."""
    import asyncio

    try:
        async with asyncio.timeout(seconds):
            for item in wanted:
                name = item["metadata"]["name"]
                while True:
                    if reached(await api.get(_resource(), name)):
                        break
                    await asyncio.sleep(PAUSE_S)
                click.echo(f"{name} is {word}")
    except TimeoutError as error:
        raise late from error


def _check_own(found: Object) -> None:
    """Raises KeptError for a definition that another program has installed."""
    if (found["metadata"].get("labels") or {}).get(PART_OF_LABEL) != KGPU:
        raise KeptError(
            "it was not installed by kgpu",
            f"the label {PART_OF_LABEL}={KGPU}",
            "remove it with kubectl if nobody needs it",
        )


async def _check_unused(api: KubeApi, crd: Object, *, force: bool) -> None:
    """Raises KeptError when there are objects of the definition, unless ``force``."""
    from kgpu.kube.port import Resource

    spec = crd["spec"]
    served = [version["name"] for version in spec["versions"] if version.get("served")]
    if force or not served or not established(crd):
        return
    resource = Resource(
        spec["group"],
        served[0],
        spec["names"]["plural"],
        spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
    )
    objects = [item["metadata"]["name"] for item in (await api.list(resource)).items]
    if objects:
        more = f" and {len(objects) - SOME} more" if len(objects) > SOME else ""
        raise KeptError(
            f"there are objects of kind {resource.kind}: {', '.join(objects[:SOME])}{more}; they would be deleted too",
            "no objects of the kind",
            f"delete them (`kubectl delete {resource.plural} --all`), or use --force",
        )
