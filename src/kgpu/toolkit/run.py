"""The toolkit's work on the node: read the hardware, find the driver, write the spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kgpu.base.boot import boot_id
from kgpu.base.errors import ConfigError, HostError, HwError
from kgpu.base.files import write_atomic
from kgpu.formats.cdi import GIDS_VERSION, VERSIONS, Spec, build_spec, dump_spec
from kgpu.formats.names import CDI_BOOT_ANNOTATION, CDI_COHERENT_ANNOTATION, CDI_DRIVER_ANNOTATION
from kgpu.host.root import DriverRoot, Tree
from kgpu.hw.port import Inventory
from kgpu.toolkit.cdi_support import EngineSupport, oldest_support
from kgpu.toolkit.config import AUTO, NO_GIDS, GenerateConfig, Output
from kgpu.toolkit.hooks import find_hooks
from kgpu.toolkit.model import Generated, ModeFinding, ModeInput
from kgpu.toolkit.modes import auto
from kgpu.toolkit.modes.base import Hardware
from kgpu.toolkit.modes.table import mode_named

ALLOW = (
    "make what is missing, or write the spec without it by --allow-incomplete: MIG slices that lack nodes are left out"
)
_COHERENCE = {"true": "coherent", "false": "noncoherent"}
_HOST = Tree(Path("/"), "/")


class IncompleteError(HostError):
    """Devices or files are not whole, and the configuration does not allow that.

    ``generated`` is what could be offered nevertheless, None when that is nothing.
    """

    def __init__(self, what: str, expected: str, remedy: str, generated: Generated | None = None) -> None:
        super().__init__(what, expected, remedy)
        self.generated = generated


def generate(
    read: Callable[[], Inventory],
    root: DriverRoot,
    config: GenerateConfig,
    *,
    engines: Iterable[EngineSupport] = (),
    host: Tree = _HOST,
) -> Generated:
    """A spec for this node.

    ``read`` enumerates the GPUs now; it is called only in modes that want to know. ``engines`` are those of the node;
    without any, nothing is written that an old one might not read. ``host`` is where a hook helper is looked for.
    Raises HwError, HostError (no driver, no device), IncompleteError, ConfigError.
    """
    name, why, inventory = _resolve(read, root, config.mode)
    mode = mode_named(name)
    if inventory is None and mode.hardware is Hardware.ALWAYS:
        inventory = read()
    elif inventory is None and mode.hardware is Hardware.IF_THERE and config.mode != AUTO:
        inventory = _try(read)
    engines = tuple(engines)
    newest = config.newest or oldest_support(engines)
    look = ModeInput(
        root=root,
        config=config,
        inventory=inventory,
        hooks=find_hooks(config.hooks, host),
        gids=NO_GIDS not in config.features and _reads(newest, GIDS_VERSION),
    )
    finding = mode.find(look)
    missing = (*(item.note() for item in finding.driver.missing(essential=True)), *finding.gaps)
    if missing and not finding.devices:
        raise _incomplete(missing, "make what is missing: without it there is no device to write a spec for")
    kind = mode.kind(config)
    spec = _build(kind, finding, config)
    siblings = {}
    for value, label in _COHERENCE.items():
        devices = tuple(
            device for device in finding.devices if device.annotations.get(CDI_COHERENT_ANNOTATION) == value
        )
        if devices:
            siblings[label] = _build(f"{kind}.{label}", replace(finding, devices=devices), config)
    notes = (*finding.notes, *finding.gaps, *_version_notes(spec, config.newest, engines))
    generated = Generated(
        spec, tuple(dict.fromkeys(notes)), mode=name, why=why, driver=finding.driver, siblings=siblings
    )
    if missing and not config.allow_incomplete:
        raise _incomplete(missing, ALLOW, generated)
    return generated


def write_specs(generated: Generated, output: Output) -> tuple[Path, ...]:
    """Write the specs (each atomically, mode 0644) and return their paths; none where there is no file to write to."""
    if output.path is None:
        return ()
    paths = []
    for label, spec in generated.specs.items():
        path = output.path.with_name(f"{output.path.stem}.{label}{output.path.suffix}") if label else output.path
        write_spec(spec, Output(path, output.form))
        paths.append(path)
    return tuple(paths)


def write_spec(spec: Spec, output: Output) -> str:
    """Write the spec (atomically, mode 0644) and return "", or return its text when there is no file to write to."""
    text = dump_spec(spec, output.form)
    if output.path is None:
        return text
    try:
        write_atomic(output.path, text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise HostError(
            f"{output.path} can't be written: {error.strerror}",
            "a folder that may be written",
            "choose another --output",
        ) from error
    return ""


def keep_spec(path: Path, text: str) -> bool:
    """Make a spec of this node hold exactly this text; one that does is left alone (False). Raises HostError."""
    try:
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return False
        write_atomic(path, text)
    except OSError as error:
        raise HostError(
            f"the CDI spec {path} can't be written: {error.strerror}",
            "a folder that may be written and that the container runtime reads",
            "correct --cdi-dir (CDI_DIR), or mount the folder",
        ) from error
    return True


def _resolve(
    read: Callable[[], Inventory], root: DriverRoot, asked: str
) -> tuple[str, str, Inventory | None]:  # fmt: skip
    if asked != AUTO:
        return asked, "", None
    early = auto.before_hardware(root)
    if early is not None:
        return *early, None
    inventory = _try(read)
    return *auto.with_hardware(root, inventory), inventory


def _try(read: Callable[[], Inventory]) -> Inventory | None:
    try:
        return read()
    except HwError:
        return None


def _incomplete(missing: Sequence[str], remedy: str, generated: Generated | None = None) -> IncompleteError:
    return IncompleteError(
        f"{len(missing)} {'thing is' if len(missing) == 1 else 'things are'} not whole: {'; '.join(missing)}",
        "everything that containers need for the devices that the spec names",
        remedy,
        generated,
    )


def _build(kind: str, finding: ModeFinding, config: GenerateConfig) -> Spec:
    """The annotation tells devices apart for the sibling specs; no spec has it."""
    return build_spec(
        kind=kind,
        devices=(
            replace(device, annotations=dict(_others(device.annotations))) if device.annotations else device
            for device in finding.devices
        ),
        common=finding.common,
        all_device=config.all_device,
        annotations=_annotations(finding) if config.annotate else None,
    )


def _others(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((key, value) for key, value in annotations.items() if key != CDI_COHERENT_ANNOTATION)


def _annotations(finding: ModeFinding) -> dict[str, str]:
    """What a spec was made for: by it a check sees that the driver or the boot is another one now."""
    annotations = {CDI_DRIVER_ANNOTATION: finding.driver.version} if finding.driver.version else {}
    boot = boot_id()
    if boot:  # not every kernel says it, and no check fails without
        annotations[CDI_BOOT_ANNOTATION] = boot
    return annotations


def _reads(newest: str, version: str) -> bool:
    return bool(newest) and VERSIONS.index(newest) >= VERSIONS.index(version)


def _version_notes(spec: Spec, limit: str, engines: Iterable[EngineSupport]) -> list[str]:
    """Raises ConfigError when the spec needs a newer version than was asked for."""
    if limit and not _reads(limit, spec.cdi_version):
        raise ConfigError(
            f"the spec needs CDI {spec.cdi_version}, newer than {limit}",
            f"--max-cdi-version {spec.cdi_version} or later",
            "raise it, or leave out what is new: names that begin with a digit (--device-name-strategy type-index), "
            "--annotate, features",
        )
    return [
        f"{engine.program} reads CDI up to {engine.newest}, so it refuses this spec of version {spec.cdi_version}: "
        "update it"
        for engine in engines
        if engine.newest and not _reads(engine.newest, spec.cdi_version)
    ]
