"""The toolkit's work on the node: read the hardware, find the driver, write the spec, list what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kgpu.base.errors import HostError, UserError
from kgpu.base.files import write_atomic
from kgpu.formats.cdi import Spec, dump_spec, parse_spec, qualified_name
from kgpu.host.driver_files import driver_edits, find_driver_files
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Reader
from kgpu.toolkit.config import GenerateConfig, Output
from kgpu.toolkit.model import Generated, ListedSpec, Listing
from kgpu.toolkit.plan import plan_spec, resolve_names


async def generate(reader: Reader, root: DriverRoot, config: GenerateConfig) -> Generated:
    """A spec for the accelerators that ``reader`` sees and the driver under ``root``. Raises HwError, HostError."""
    inventory = await reader.inventory()
    files = find_driver_files(root, version=inventory.driver_version)
    common = driver_edits(root, files)
    return plan_spec(inventory, common, config, node=root.device_node, has_node=root.has_node, notes=files.notes)


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


def list_devices(folders: Sequence[str]) -> Listing:
    """The resolvable names in the spec folders, lowest priority first; broken files are warnings."""
    specs: list[ListedSpec] = []
    warnings: list[str] = []
    for priority, folder in enumerate(folders):
        for path in _spec_files(Path(folder)):
            try:
                spec = parse_spec(path.read_bytes(), source=str(path))
            except UserError as error:
                warnings.append(error.one_line())
            except OSError as error:
                warnings.append(f"{path} can't be read: {error.strerror}")
            else:
                names = tuple(qualified_name(spec.kind, device.name) for device in spec.devices)
                specs.append(ListedSpec(str(path), priority, names))
    listing = resolve_names(specs)
    return Listing(listing.names, (*warnings, *listing.warnings))


def _spec_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".json"})
    except OSError:
        return []
