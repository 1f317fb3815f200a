"""Facts from folders made like a node's /sys, /proc and /etc."""

from __future__ import annotations

import gzip
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.discovery.features.model import PciFunction
from kgpu.discovery.features.plan import plan
from kgpu.discovery.features.sources import parse_cpuinfo, pci_names, read_facts
from kgpu.formats import names
from kgpu.formats.os_release import parse_os_release

CPUINFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx2 sha_ni\n\n"


def fill(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def pci(address, pci_class, vendor, **more):
    folder = f"sys/bus/pci/devices/{address}"
    named = {"class": pci_class, "vendor": vendor, **more}
    return {f"{folder}/{name}": value + "\n" for name, value in named.items() if value}


def test_a_whole_node(tmp_path):
    root = fill(
        tmp_path,
        {
            **pci("0000:01:00.0", "0x030200", "0x10de", device="0x2330"),
            **pci("0000:02:00.0", "0x020000", "0x15b3", sriov_totalvfs="8"),
            **pci("0000:03:00.0", "0x030000", ""),
            "proc/sys/kernel/osrelease": "5.15.0-1041-azure\n",
            "boot/config-5.15.0-1041-azure": "# CONFIG_PREEMPT is not set\nCONFIG_NO_HZ=y\nCONFIG_HZ=250\n",
            "sys/fs/selinux/enforce": "1",
            "etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\n# comment\n',
            "proc/cpuinfo": CPUINFO * 2,
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,64\n",
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,65\n",
            "sys/devices/system/node/online": "0-1\n",
            "proc/modules": "nvidia 1 2 - Live 0x0\nib_uverbs 1 0 - Live 0x0\n",
            "proc/swaps": "Filename Type Size\n/dev/sda2 partition 1\n",
            "sys/block/nvme0n1/queue/rotational": "0\n",
            "sys/class/net/eth0/device/sriov_totalvfs": "8",
            "sys/class/net/eth0/device/sriov_numvfs": "2",
        },
    )
    facts = read_facts([root])
    assert facts.pci == (
        PciFunction(pci_class="0302", vendor="10de"),
        PciFunction(pci_class="0200", vendor="15b3", sriov=True),
    )
    assert (facts.kernel, facts.kernel_options, facts.selinux) == ("5.15.0-1041-azure", frozenset({"NO_HZ"}), True)
    assert facts.os_release["VERSION_ID"] == "22.04"
    assert (facts.cpu.vendor, facts.cpu.multithreading) == ("AuthenticAMD", True)
    assert facts.cpu.flags == frozenset({"fpu", "avx2", "sha_ni"})
    assert (facts.numa_nodes, facts.swap, facts.solid_state) == (2, True, True)
    assert (facts.sriov_capable, facts.sriov_configured) == (True, True)
    assert "ib_uverbs" in facts.modules


def test_an_empty_root_gives_no_labels(tmp_path):
    assert plan(read_facts([tmp_path])) == {}


def test_a_container_with_parts_of_the_hosts_root_has_the_kernels_facts_from_its_own_proc(tmp_path):
    root = fill(tmp_path, {"sys/devices/system/node/online": "0-1\n", "etc/os-release": "ID=ubuntu\n"})
    facts = read_facts([root])
    assert facts.kernel == os.uname().release
    assert (facts.numa_nodes, facts.os_release["ID"]) == (2, "ubuntu")
    (root / "proc").mkdir()
    assert read_facts([root]).kernel == "", "a root with a /proc is whole"


def test_devices_of_a_simulated_driver_root_count_beside_the_hosts(tmp_path, sim_root):
    host = fill(tmp_path, pci("0000:02:00.0", "0x020000", "0x1af4"))
    root = sim_root("hgx-h100")
    assert len(pci_names([host, root])) > 8
    labels = plan(read_facts([host, root]))
    assert labels[names.NFD_PCI_NVIDIA[0]] == labels[names.NFD_PREFIX + "pci-1af4.present"] == "true"


def test_a_device_that_comes_is_seen(tmp_path):
    root = fill(tmp_path, pci("0000:02:00.0", "0x020000", "0x1af4"))
    before = pci_names([root])
    fill(root, pci("0000:03:00.0", "0x030200", "0x10de"))
    assert pci_names([root]) - before == {str(root / "sys/bus/pci/devices/0000:03:00.0")}


def test_links_of_os_release_stay_below_the_root(tmp_path):
    root = fill(tmp_path, {"usr/lib/os-release": "ID=talos\n"})
    (root / "etc").mkdir()
    (root / "etc/os-release").symlink_to("/usr/lib/os-release")
    assert read_facts([root]).os_release == {"ID": "talos"}


def test_os_release_links_in_circles_are_nothing(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").symlink_to("/etc/os-release")
    assert read_facts([tmp_path]).os_release == {}


def test_the_running_kernels_own_configuration_comes_first(tmp_path):
    root = fill(tmp_path, {"proc/sys/kernel/osrelease": "6.1\n", "boot/config-6.1": "CONFIG_PREEMPT=y\n"})
    (root / "proc/config.gz").write_bytes(gzip.compress(b"CONFIG_NO_HZ=y\nCONFIG_X=m\n"))
    assert read_facts([root]).kernel_options == {"NO_HZ", "X"}


def test_a_broken_compressed_configuration_is_nothing(tmp_path):
    root = fill(tmp_path, {"proc/sys/kernel/osrelease": "6.1\n"})
    (root / "proc/config.gz").write_bytes(b"\x1f\x8b\x08no")
    assert read_facts([root]).kernel_options == frozenset()


@pytest.mark.parametrize(
    ("line", "value"),
    [("A=b", "b"), ('A="b c"', "b c"), ("A='b'", "b"), ('A="b\\"c"', 'b"c'), ("A=", ""), (" A=b ", "b"), ('A="', '"')],
)
def test_os_release_lines(line, value):
    assert parse_os_release(line) == {"A": value}


@given(st.text())
def test_parsers_take_any_text(text):
    assert isinstance(parse_os_release(text), dict)
    assert isinstance(parse_cpuinfo(text), dict)


@given(st.binary(max_size=300))
def test_hostile_files_are_left_out(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("root")
    for name in ("proc/cpuinfo", "etc/os-release", "proc/sys/kernel/osrelease", "sys/devices/system/node/online"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert isinstance(plan(read_facts([root])), dict)


def test_a_bus_that_is_seen_at_two_places_is_read_once(tmp_path):
    root = fill(tmp_path / "a", pci("0000:01:00.0", "0x030200", "0x10de"))
    (tmp_path / "b").symlink_to(root)
    assert len(read_facts([root, tmp_path / "b", tmp_path / "none"]).pci) == 1


def test_a_bus_that_may_not_be_looked_at_is_told(tmp_path, monkeypatch):
    root = fill(tmp_path, pci("0000:01:00.0", "0x030200", "0x10de"))
    stat = type(root).stat

    def refuse(path, **given):
        if "bus" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **given)

    monkeypatch.setattr(type(root), "stat", refuse)
    with pytest.raises(HostError, match=r"sys/bus/pci/devices can't be looked at: Permission denied"):
        read_facts([root])
    assert pci_names([root]) == frozenset()
