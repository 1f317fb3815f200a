"""Specs held against the node: each rule finds its flaw, and nothing else is found in a good spec."""

from __future__ import annotations

import msgspec
import pytest

from kgpu.base.errors import PlacedError
from kgpu.formats.cdi import CdiDeviceNode, CdiMount, ContainerEdits, Hook, Spec, SpecDevice
from kgpu.host.dev_nodes import Numbers
from kgpu.toolkit.flaws import FlawSeverity
from kgpu.toolkit.specs import FakeNode, FoundSpec
from kgpu.toolkit.validate import validate_specs

KIND = "vendor.com/class"
VERSION = "570.133.20"
HOOK = Hook(hook_name="createContainer", path="/usr/bin/hook", args=("hook", "update-ldcache"), env=("A=b",))
CUDA = CdiMount(
    host_path=f"/usr/lib64/libcuda.so.{VERSION}", container_path=f"/usr/lib64/libcuda.so.{VERSION}",
    options=("ro", "rbind", "rprivate"),
)  # fmt: skip
STATIC = "/etc/cdi"


def node(**changes: object) -> FakeNode:
    facts: dict[str, object] = {
        "kinds": {CUDA.host_path: "file", "/usr/bin/hook": "program", "/dev/plain": "file"},
        "devices": {"/dev/nvidia0": Numbers(195, 0), "/dev/nvidia-uvm": Numbers(508, 0)},
        "drivers": {"nvidia": 195, "nvidia-uvm": 508},
        "version": VERSION,
    }
    return FakeNode(**{**facts, **changes})


def spec(*, names: tuple[str, ...] = ("0", "GPU-a"), device: object = None, common: object = None) -> Spec:
    own = device or ContainerEdits(device_nodes=(CdiDeviceNode(path="/dev/nvidia0"),))
    shared = common or ContainerEdits(
        device_nodes=(CdiDeviceNode(path="/dev/nvidia-uvm"),), mounts=(CUDA,), hooks=(HOOK,)
    )
    return Spec(
        cdi_version="0.6.0",
        kind=KIND,
        devices=tuple(SpecDevice(name=name, container_edits=own) for name in names),
        container_edits=shared,
    )


def found(
    path: str = "/var/run/cdi/a.yaml", priority: int = 1, content: Spec | None = None, **more: object
) -> FoundSpec:
    return FoundSpec(path=path, priority=priority, spec=content or spec(), **more)


def check(*specs: FoundSpec, facts: FakeNode | None = None):
    return validate_specs(specs or (found(),), facts or node(), static_dirs=(STATIC,))


def test_a_good_spec_has_no_flaw() -> None:
    result = check()
    assert result.flaws == ()
    assert result.notes == ()
    assert result.valid
    assert result.names == (f"{KIND}=0", f"{KIND}=GPU-a")


def test_nothing_at_all_is_not_valid() -> None:
    assert not validate_specs((), node()).valid


def edits(**changes: object) -> Spec:
    return spec(common=ContainerEdits(**changes))


def hook(**changes: object) -> Spec:
    return edits(hooks=(msgspec.structs.replace(HOOK, **changes),))


RULES = {
    "node gone": (edits(device_nodes=(CdiDeviceNode(path="/dev/x", host_path="/host/dev/x"),)), {}, "error", "/host/dev/x is not there"),
    "node is a file": (edits(device_nodes=(CdiDeviceNode(path="/dev/plain"),)), {}, "error", "is a file and no device"),
    "other numbers": (
        edits(device_nodes=(CdiDeviceNode(path="/dev/nvidia-uvm", type="c", major=510, minor=0),)), {}, "error",
        "it says 510:0 for /dev/nvidia-uvm, which is 508:0",
    ),
    "stale node": (None, {"drivers": {"nvidia": 195, "nvidia-uvm": 510}}, "error", "no driver has its major 508"),
    "mount gone": (edits(mounts=(CdiMount(host_path="/no", container_path="/no"),)), {}, "error", "/no is not there"),
    "driver updated": (None, {"version": "580.65.06"}, "error", f"it is for driver {VERSION}, but 580.65.06 runs"),
    "shared mount": (
        edits(mounts=(msgspec.structs.replace(CUDA, options=("rshared",)),)), {}, "warning", "shows on the host",
    ),
    "hook gone": (hook(path="/usr/bin/none"), {}, "error", "no program on this node"),
    "hook without env": (hook(env=()), {}, "error", "LD_PRELOAD"),
    "chmod": (hook(args=("hook", "chmod", "--mode", "755")), {}, "warning", "follows links of the image"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "facts", "severity", "said"), RULES.values(), ids=RULES)
def test_a_rule_finds_its_flaw_alone(content, facts, severity: str, said: str) -> None:
    result = check(found(content=content), facts=node(**facts))
    (flaw,) = result.flaws
    assert (str(flaw.severity), said in flaw.what) == (severity, True)
    assert flaw.remedy
    assert result.valid is (severity == "warning")
    # Without the node only the file itself is judged.
    assert validate_specs((found(content=content),), None).flaws == ()


def test_a_start_hook_is_looked_for_in_the_container_only() -> None:
    assert check(found(content=hook(hook_name="startContainer", path="/in/the/image"))).flaws == ()


def test_a_flaw_says_whose_it_is_and_comes_once() -> None:
    gone = ContainerEdits(device_nodes=(CdiDeviceNode(path="/dev/gone"),))
    result = check(found(content=spec(names=("0", "GPU-a", "all"), device=gone)))
    assert [flaw.where for flaw in result.flaws] == ["device 0 and 2 more"]
    shared = check(found(content=spec(device=gone, common=gone)))
    assert [flaw.where for flaw in shared.flaws] == ["every device"]


def test_dynamic_majors_in_a_lasting_folder() -> None:
    recorded = edits(device_nodes=(CdiDeviceNode(path="/dev/nvidia-uvm", type="c", major=508, minor=0),))
    (flaw,) = check(found(f"{STATIC}/a.yaml", content=recorded)).flaws
    assert flaw.severity is FlawSeverity.WARNING
    assert "after a reboot" in flaw.what
    assert check(found("/var/run/cdi/a.yaml", content=recorded)).flaws == ()
    fixed = edits(device_nodes=(CdiDeviceNode(path="/dev/nvidia0", type="c", major=195, minor=0),))
    assert check(found(f"{STATIC}/a.yaml", content=fixed)).flaws == ()


def test_a_name_in_two_files_of_one_priority_resolves_nowhere() -> None:
    other = spec(names=("0", "1"))
    result = check(found("/var/run/cdi/a.yaml"), found("/var/run/cdi/b.yaml", content=other))
    (flaw,) = result.flaws
    assert flaw.where == f"{KIND}=0"
    assert "/var/run/cdi/a.yaml, /var/run/cdi/b.yaml" in flaw.what
    assert not result.valid
    assert set(result.names) == {f"{KIND}=GPU-a", f"{KIND}=1"}


def test_a_copy_behind_a_newer_spec_is_said() -> None:
    result = check(found(f"{STATIC}/old.yaml", 0), found("/var/run/cdi/new.yaml", 1))
    (flaw,) = result.flaws
    assert (flaw.severity, flaw.path) == (FlawSeverity.WARNING, f"{STATIC}/old.yaml")
    assert "/var/run/cdi/new.yaml" in flaw.what
    assert flaw.where == f"{KIND}=0 and 1 more"
    assert result.valid


def test_broken_open_and_ignored_files() -> None:
    broken = FoundSpec(path="/x/bad.yaml", problem=PlacedError("/x/bad.yaml", "it has no devices", "one", "correct it"))
    result = check(broken, found("/x/a.yaml", open_to_all=True), found("/x/b.yml", ignored=True))
    said = {flaw.path: (str(flaw.severity), flaw.what) for flaw in result.flaws}
    assert said["/x/bad.yaml"] == ("error", "it has no devices")
    assert said["/x/a.yaml"][0] == "error"
    assert "every user" in said["/x/a.yaml"][1]
    assert said["/x/b.yml"][0] == "warning"
    assert [flaw.severity for flaw in result.flaws] == ["error", "error", "warning"]


def test_what_can_not_be_known_is_said_and_accuses_nobody() -> None:
    result = check(facts=node(version="", drivers={}))
    assert result.flaws == ()
    assert any("not known" in note for note in result.notes)


def test_what_the_spec_was_made_for_is_compared() -> None:
    def made(**annotations: str) -> FoundSpec:
        kept = {f"kgpu.dev/{key}": value for key, value in annotations.items()}
        return found(content=msgspec.structs.replace(spec(), annotations=kept))

    here = node(boot="b2")
    assert check(made(**{"driver-version": VERSION, "boot-id": "b2"}), facts=here).flaws == ()
    [driver] = check(made(**{"driver-version": "550.1.2"}), facts=here).flaws
    assert driver.severity is FlawSeverity.ERROR
    assert f"550.1.2, but {VERSION} runs" in driver.what
    [boot] = check(made(**{"boot-id": "b1"}), facts=here).flaws
    assert boot.severity is FlawSeverity.WARNING
    assert check(made(**{"boot-id": "b1"})).flaws == ()  # the kernel does not say
