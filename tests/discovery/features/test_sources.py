"""Features from folders made like a node's /sys, /proc and /etc, and what of them becomes labels."""

from __future__ import annotations

import gzip
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.discovery.features.cpu_source import parse_cpuinfo
from kgpu.discovery.features.sources import MAX_LABELS, changes, read_node
from kgpu.formats import names
from kgpu.formats.os_release import parse_os_release

CPUINFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx2 sha_ni cat_l3 sgx\n\n"
FOLDER = "etc/kubernetes/node-feature-discovery"


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


def features(root):
    return read_node([root]).features


def bare(root):
    return {key.removeprefix(names.NFD_PREFIX): value for key, value in read_node([root]).labels.items()}


NODE = {
    **pci("0000:01:00.0", "0x030200", "0x10de", device="0x2330", subsystem_vendor="0x10de", subsystem_device="0x16c1"),
    **pci("0000:02:00.0", "0x020000", "0x15b3", sriov_totalvfs="8"),
    **pci("0000:03:00.0", "0x030000", ""),
    "proc/sys/kernel/osrelease": "5.15.0-1041-azure\n",
    "boot/config-5.15.0-1041-azure": '# CONFIG_PREEMPT is not set\nCONFIG_NO_HZ=y\nCONFIG_HZ=250\nCONFIG_A="x y"\n',
    "sys/fs/selinux/enforce": "1",
    "etc/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\n# comment\n',
    "proc/cpuinfo": CPUINFO * 2,
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,64\n",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "2100000\n",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,65\n",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id": "1\n",
    "sys/devices/system/cpu/cpu1/cpufreq/base_frequency": "2700000\n",
    "sys/devices/system/cpu/intel_pstate/status": "active\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "sys/devices/system/cpu/cpuidle/current_driver": "intel_idle\n",
    "sys/module/intel_idle/parameters/max_cstate": "9\n",
    "sys/module/kvm_amd/parameters/sev": "Y\n",
    "sys/module/kvm_amd/parameters/sev_es": "N\n",
    "sys/fs/cgroup/misc.capacity": "sev 410\nsev_es 99\nsgx_epc 4261412864\n",
    "sys/fs/resctrl/info/L3/num_closids": "16\n",
    "sys/devices/system/node/online": "0-1\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "1024\n",
    "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
    "sys/bus/nd/devices/dax0.0/devtype": "nd_dax\n",
    "sys/bus/nd/devices/ndbus0/other": "x\n",
    "sys/devices/virtual/misc/kvm/dev": "10:232\n",
    "proc/modules": "nvidia 1 2 - Live 0x0\nib_uverbs 1 0 - Live 0x0\n",
    "lib/modules/5.15.0-1041-azure/modules.builtin": "kernel/fs/ext4/ext4.ko\nkernel/drivers/snd-pcm.ko\n",
    "proc/swaps": "Filename Type Size\n/dev/sda2 partition 1\n",
    "sys/block/nvme0n1/queue/rotational": "0\n",
    "sys/class/net/eth0/device/sriov_totalvfs": "8",
    "sys/class/net/eth0/device/sriov_numvfs": "2",
    "sys/class/net/eth0/mtu": "1500\n",
    "sys/class/net/lo/operstate": "unknown\n",
    "sys/class/net/bonding_masters/x": "",
    "sys/class/dmi/id/sys_vendor": "NVIDIA\n",
    "sys/class/dmi/id/product_name": "DGX H100\n",
    "sys/bus/usb/devices/1-1/bDeviceClass": "00\n",
    "sys/bus/usb/devices/1-1/idVendor": "0951\n",
    "sys/bus/usb/devices/1-1/idProduct": "1666\n",
    "sys/bus/usb/devices/1-1/serial": "XYZ\n",
    "sys/bus/usb/devices/1-1/1-1:1.0/bInterfaceClass": "FE\n",
    "sys/bus/usb/devices/1-1/1-1:1.1/bInterfaceClass": "08\n",
    "sys/bus/usb/devices/usb1/bDeviceClass": "09\n",
    "sys/bus/usb/devices/usb1/idVendor": "1d6b\n",
    "sys/bus/usb/devices/usb1/idProduct": "0002\n",
}  # fmt: skip


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("kernel.version", {"full": "5.15.0-1041-azure", "major": "5", "minor": "15", "revision": "0"}),
        ("kernel.config", {"NO_HZ": "y", "HZ": "250", "A": "x y"}),
        ("kernel.selinux", {"enabled": "true"}),
        ("kernel.kvm", {"enabled": "true"}),
        ("system.osrelease", {"ID": "ubuntu", "VERSION_ID": "22.04", "VERSION_ID.major": "22", "VERSION_ID.minor": "04"}),
        ("system.dmiid", {"sys_vendor": "NVIDIA", "product_name": "DGX H100"}),
        ("cpu.model", {"vendor_id": "AMD", "family": "25", "id": "17", "hypervisor": "none"}),
        ("cpu.topology", {"hardware_multithreading": "true", "socket_count": "2"}),
        ("cpu.pstate", {"status": "active", "turbo": "true"}),
        ("cpu.cstate", {"enabled": "true"}),
        ("cpu.sst", {"bf.enabled": "true"}),
        ("cpu.security", {"sgx.enabled": "true", "sev.enabled": "true", "sev.asids": "410", "sev.encrypted_state_ids": "99",
                          "sgx.epc": "4261412864"}),
        ("cpu.rdt", {"RDTL3CA_NUM_CLOSID": "16"}),
        ("memory.numa", {"is_numa": "true", "node_count": "2"}),
        ("memory.swap", {"enabled": "true"}),
        ("memory.hugepages", {"enabled": "true", "hugepages-2Mi": "2Gi"}),
    ],
)  # fmt: skip
def test_attributes_of_a_whole_node(tmp_path, feature, values):
    assert features(fill(tmp_path, NODE)).attributes[feature] == values


def test_flags_and_devices_of_a_whole_node(tmp_path):
    found = features(fill(tmp_path, NODE))
    assert found.flags == {
        "cpu.cpuid": {"X87", "AVX2", "SHA", "SGX"},
        "cpu.rdt": {"RDTL3CA"},
        "kernel.loadedmodule": {"nvidia", "ib_uverbs"},
        "kernel.enabledmodule": {"nvidia", "ib_uverbs", "ext4", "snd_pcm"},
    }
    assert found.instances == {
        "pci.device": (
            {"class": "0302", "vendor": "10de", "device": "2330", "subsystem_vendor": "10de", "subsystem_device": "16c1"},
            {"class": "0200", "vendor": "15b3", "sriov_totalvfs": "8"},
        ),
        "usb.device": (
            {"class": "08", "vendor": "0951", "device": "1666", "serial": "XYZ"},
            {"class": "fe", "vendor": "0951", "device": "1666", "serial": "XYZ"},
            {"class": "09", "vendor": "1d6b", "device": "0002"},
        ),
        "storage.block": ({"name": "nvme0n1", "rotational": "0"},),
        "network.device": ({"name": "eth0", "mtu": "1500", "sriov_numvfs": "2", "sriov_totalvfs": "8"},),
        "network.virtual": ({"name": "lo", "operstate": "unknown"},),
        "memory.nv": ({"name": "dax0.0", "devtype": "nd_dax"},),
    }  # fmt: skip
    assert read_node([tmp_path], node_name="n").features.attributes["system.name"] == {"nodename": "n"}


def test_labels_of_a_whole_node(tmp_path):
    found = bare(fill(tmp_path, NODE))
    assert "usb-fe_0951_1666.present" in found
    assert found["cpu-security.sev.enabled"] == found["memory-nv.dax"] == found["cpu-power.sst_bf.enabled"] == "true"
    assert not {key for key in found if "dmi" in key or "hugepages" in key or "kvm" in key}


def test_an_empty_root_gives_no_labels(tmp_path):
    read = read_node([tmp_path])
    assert (read.labels, read.notes) == ({}, ())


def test_a_container_with_parts_of_the_hosts_root_has_the_kernels_facts_from_its_own_proc(tmp_path):
    root = fill(tmp_path, {"sys/devices/system/node/online": "0-1\n", "etc/os-release": "ID=ubuntu\n"})
    found = features(root).attributes
    assert found["kernel.version"]["full"] == os.uname().release
    assert (found["memory.numa"]["node_count"], found["system.osrelease"]["ID"]) == ("2", "ubuntu")
    (root / "proc").mkdir()
    assert "kernel.version" not in features(root).attributes, "a root with a /proc is whole"


@pytest.mark.parametrize(
    ("release", "parts"),
    [
        ("6.8.0-45+exp ected-", {"full": "6.8.0-45_exp_ected", "major": "6", "minor": "8", "revision": "0"}),
        ("6.1", {"full": "6.1", "major": "6", "minor": "1"}),
        ("next", {"full": "next"}),
        ("../../etc", {"full": "etc"}),
    ],
)
def test_kernel_versions(tmp_path, release, parts):
    assert features(fill(tmp_path, {"proc/sys/kernel/osrelease": release})).attributes["kernel.version"] == parts


def test_devices_of_a_simulated_driver_root_count_beside_the_hosts(tmp_path, sim_root):
    host = fill(tmp_path, pci("0000:02:00.0", "0x020000", "0x1af4"))
    root = sim_root("hgx-h100")
    assert len(changes([host, root])) > 8
    labels = read_node([host, root]).labels
    assert labels[names.NFD_PCI_NVIDIA[0]] == labels[names.NFD_PREFIX + "pci-1af4.present"] == "true"


@pytest.mark.parametrize(
    "files",
    [
        pci("0000:03:00.0", "0x030200", "0x10de"),
        {f"{FOLDER}/nfd-worker.conf": "core: {}"},
        {f"{FOLDER}/features.d/a": "x"},
        {f"{FOLDER}/custom.d/b.yaml": "[]"},
    ],
    ids=["device", "config", "feature file", "rules"],
)
def test_what_comes_and_goes_is_seen(tmp_path, files):
    root = fill(tmp_path, pci("0000:02:00.0", "0x020000", "0x1af4"))
    before = changes([root])
    fill(root, files)
    assert len(changes([root]) - before) >= 1
    for name in files:
        (root / name).unlink()
    assert before <= changes([root]) or before == changes([root])


def test_links_of_os_release_stay_below_the_root(tmp_path):
    root = fill(tmp_path, {"usr/lib/os-release": "ID=talos\n"})
    (root / "etc").mkdir()
    (root / "etc/os-release").symlink_to("/usr/lib/os-release")
    assert features(root).attributes["system.osrelease"] == {"ID": "talos"}


def test_os_release_links_in_circles_are_nothing(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").symlink_to("/etc/os-release")
    assert "system.osrelease" not in features(tmp_path).attributes


def test_the_running_kernels_own_configuration_comes_first(tmp_path):
    root = fill(tmp_path, {"proc/sys/kernel/osrelease": "6.1\n", "boot/config-6.1": "CONFIG_PREEMPT=y\n"})
    (root / "proc/config.gz").write_bytes(gzip.compress(b"CONFIG_NO_HZ=y\nCONFIG_X=m\n"))
    assert features(root).attributes["kernel.config"] == {"NO_HZ": "y", "X": "m"}
    fill(
        root,
        {f"{FOLDER}/nfd-worker.conf": "sources: {kernel: {kconfigFile: /opt/config}}", "opt/config": "CONFIG_Y=y\n"},
    )
    assert features(root).attributes["kernel.config"] == {"Y": "y"}


def test_a_broken_compressed_configuration_is_nothing(tmp_path):
    root = fill(tmp_path, {"proc/sys/kernel/osrelease": "6.1\n"})
    (root / "proc/config.gz").write_bytes(b"\x1f\x8b\x08no")
    assert "kernel.config" not in features(root).attributes


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
    named = [name for name in NODE if not name.startswith("sys/bus/pci")]
    for name in (*named, f"{FOLDER}/nfd-worker.conf", f"{FOLDER}/features.d/x", f"{FOLDER}/custom.d/x"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert isinstance(read_node([root]).labels, dict)


def test_a_bus_that_is_seen_at_two_places_is_read_once(tmp_path):
    root = fill(tmp_path / "a", pci("0000:01:00.0", "0x030200", "0x10de"))
    (tmp_path / "b").symlink_to(root)
    assert len(read_node([root, tmp_path / "b", tmp_path / "none"]).features.instances["pci.device"]) == 1


def test_a_bus_that_may_not_be_looked_at_is_told(tmp_path, monkeypatch):
    root = fill(tmp_path, pci("0000:01:00.0", "0x030200", "0x10de"))
    stat = type(root).stat

    def refuse(path, **given):
        if "bus" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **given)

    monkeypatch.setattr(type(root), "stat", refuse)
    with pytest.raises(HostError, match=r"sys/bus/pci/devices can't be looked at: Permission denied"):
        read_node([root])
    assert changes([root]) == frozenset()


ROOTFS = [
    ("0000:00:00.0", "060000", "8086", {}), ("0000:00:01.0", "060400", "8086", {}), ("0000:00:1f.2", "010601", "", {}),
    ("0000:03:00.0", "030000", "1a03", {}), ("0000:3d:00.0", "0b4000", "8086", {"sriov_totalvfs": "16"}),
    ("0000:5e:00.0", "010802", "8086", {}),
]  # fmt: skip


def test_the_peers_device_tree_gives_its_labels(tmp_path):
    """One device lacks its vendor; by default only displays and co-processors count."""
    root = fill(
        tmp_path,
        {
            f"{FOLDER}/nfd-worker.conf": 'sources: {pci: {deviceClassWhitelist: ["03", "0b40", "12"], deviceLabelFields: [vendor, class]}}'
        },
    )
    for address, pci_class, vendor, more in ROOTFS:
        fill(root, pci(address, f"0x{pci_class}", vendor and f"0x{vendor}", **more))
    assert {key for key in bare(root) if key.startswith("pci-")} == {
        "pci-0300_1a03.present", "pci-0b40_8086.present", "pci-0b40_8086.sriov.capable",
    }  # fmt: skip
    assert len(features(root).instances["pci.device"]) == 5


def worker(root, config):
    return fill(root, {f"{FOLDER}/nfd-worker.conf": config})


def test_sources_are_switched_off_by_the_config(tmp_path):
    root = worker(fill(tmp_path, NODE), "core: {featureSources: [all, -usb], labelSources: [-cpu, all, fake]}")
    read = read_node([root])
    assert not read.features.has("usb.device")
    assert read.features.has("cpu.model")
    assert not [key for key in read.labels if "/cpu-" in key or "/fake-" in key]
    worker(root, "core: {featureSources: [fake, pci], labelSources: [all, fake]}")
    assert read_node([root]).features.names() == ["fake.attribute", "fake.flag", "fake.instance", "pci.device"]
    assert bare(root)["fake-fakefeature1"] == "true"


def test_the_pattern_of_labels(tmp_path):
    root = worker(fill(tmp_path, NODE), 'core: {labelWhiteList: "^(pci|cpu-model)"}')
    assert {key.partition("-")[0] for key in bare(root)} == {"pci", "cpu"}
    worker(root, 'core: {labelWhiteList: "("}')
    read = read_node([root])
    assert "missing )" in read.notes[0].what
    assert len(read.labels) > 20


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("core: {sleepIntervall: 1s}", 'did you mean "sleepInterval"'),
        ("core: {sleepInterval: soon}", "invalid duration 'soon'"),
        ("core: {ownerRefs: [pod]}", "changes nothing here"),
        ("core: {featureSources: [cpuu]}", '"cpuu" is not known'),
        ("sources: {pci: {deviceLabelFields: [colour]}}", '"colour" is not known'),
        ("sources: {pci: {deviceClassWhitelist: [03]}}", "no list of texts"),
        ("sources: [", "error parsing"),
        ("[]", "not a mapping"),
    ],
)
def test_what_is_wrong_with_the_config_is_told_and_the_node_is_labelled(tmp_path, config, said):
    read = read_node([worker(fill(tmp_path, NODE), config)])
    assert any(said in note.one_line() for note in read.notes)
    assert names.NFD_PREFIX + "pci-10de.present" in read.labels


def test_the_clusters_config_counts_on_nodes_without_one_of_their_own(tmp_path):
    ours = fill(tmp_path, NODE)
    vendor_alone = "sources: {pci: {deviceLabelFields: [vendor, device]}}"
    read = read_node([ours], cluster_config=vendor_alone)
    assert {"pci-10de_2330.present": "true"}.items() <= {
        key.removeprefix(names.NFD_PREFIX): value for key, value in read.labels.items()
    }.items()
    wrong = read_node([ours], cluster_config="core: {sleepIntervall: 1s}")
    (note,) = wrong.notes
    assert names.ENV_FEATURES_CONFIG in note.one_line()
    own = read_node(
        [worker(ours, "core: {sleepInterval: 7s}")], cluster_config=f"{vendor_alone}\ncore: {{sleepInterval: 9s}}"
    )
    assert own.interval == 7.0
    assert names.NFD_PREFIX + "pci-10de_2330.present" not in own.labels


@pytest.mark.parametrize(
    "config",
    [
        "sources: {pci: {deviceClassWhitelist: ['02'], deviceLabelFields: [vendor]}}",
        "core: {labelWhiteList: ^cpu-}",
        "core: {labelSources: [cpu]}",
    ],
)
@pytest.mark.parametrize(
    "label", [*names.NFD_PCI_NVIDIA[1:], *names.NFD_PCI_AMD, *names.NFD_PCI_GAUDI, *names.NFD_PCI_INTEL]
)
def test_no_config_hides_the_labels_by_which_accelerators_are_found(tmp_path, config, label):
    pci_class, vendor = label.removeprefix(f"{names.NFD_PREFIX}pci-").removesuffix(".present").split("_")
    root = fill(tmp_path, pci("0000:01:00.0", f"0x{pci_class}00", f"0x{vendor}", device="0x0001"))
    read = read_node([root], cluster_config=config)
    assert {key for key in read.labels if "pci-" in key} == {label} | (
        {names.NFD_PCI_NVIDIA[0]} if vendor == "10de" else set()
    )


def test_a_config_that_was_named_has_to_be_there(tmp_path):
    with pytest.raises(HostError, match="can't be read"):
        read_node([tmp_path], config=tmp_path / "none")


def test_rules_of_the_config_and_of_files_in_their_long_and_short_forms(tmp_path):
    root = worker(
        fill(tmp_path, NODE),
        """
sources:
  custom:
    - name: long
      labels: {long: "yes", shared: config}
      vars: {seen: "1"}
      matchFeatures: [{feature: kernel.loadedmodule, matchExpressions: {nvidia: {op: Exists}}}]
    - name: not here
      labels: {none: "yes"}
      matchFeatures: [{feature: kernel.loadedmodule, matchExpressions: [amdgpu]}]
""",
    )
    fill(root, {
        f"{FOLDER}/custom.d/b.yaml": '- {name: short, labels: {short: "yes", shared: file}, matchFeatures: '
                                     "[{feature: kernel.loadedmodule, matchExpressions: [nvidia]}, {feature: cpu.model, "
                                     "matchExpressions: [family=25]}, {feature: rule.matched, matchExpressions: {seen: 1}}]}",
        f"{FOLDER}/custom.d/sub/c.yaml": '- {name: c, labelsTemplate: "{{range .pci.device}}gpu-{{.device}}=x\\n{{end}}", matchFeatures: '
                                         "[{feature: pci.device, matchExpressions: {vendor: 10de}}], taints: [{key: a/b, effect: NoSchedule}]}",
        f"{FOLDER}/custom.d/.hidden": "- {name: h, labels: {hidden: x}}",
        f"{FOLDER}/custom.d/wrong": "a: b",
    })  # fmt: skip
    found = bare(root)
    assert {key: value for key, value in found.items() if key in {"long", "short", "shared", "gpu-2330", "none", "hidden"}} == {
        "long": "yes", "short": "yes", "shared": "file", "gpu-2330": "x",
    }  # fmt: skip
    told = "\n".join(note.one_line() for note in read_node([root]).notes)
    assert "no list of rules" in told
    assert "rules[0] has more than labels" in told


def test_feature_files_become_labels_and_features(tmp_path):
    root = fill(tmp_path, {
        f"{FOLDER}/features.d/a": "gpu.kind=h100\nplain\nnvidia.com/x=y\nbad value=a b\n",
        f"{FOLDER}/features.d/b": "gpu.kind=h200\n",
    })  # fmt: skip
    read = read_node([root])
    assert read.labels == {names.NFD_PREFIX + "gpu.kind": "h200", names.NFD_PREFIX + "plain": "true"}
    assert read.features.attributes["local.feature"] == {
        "gpu.kind": "h200",
        "plain": "true",
        "nvidia.com/x": "y",
        "bad value": "a b",
    }
    assert [note.what for note in read.notes] == [
        "the label nvidia.com/x of a node's own files is not set", "the label bad value of a node's own files is not set",
    ]  # fmt: skip


def test_more_labels_than_a_node_bears_are_left_out_and_told(tmp_path):
    many = "".join(f"label-{number:05}=x\n" for number in range(3000))
    root = fill(tmp_path, {f"{FOLDER}/features.d/{name}": many.replace("label", name) for name in ("a", "b", "c", "d")})
    worker(
        root,
        "sources: {custom: [{name: r, labelsTemplate: '{{range until 600}}r{{.}}=x\n\n{{end}}', matchFeatures: [{feature: local.label}]}]}",
    )
    read = read_node([root])
    assert len(read.labels) == 2 * MAX_LABELS
    assert [note.what.rpartition("/")[2] for note in read.notes] == [
        "d is left out", "the node's rules give 600 labels", "the node's feature files give 9000 labels",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300.0), ("10ms", 1.0), ("0", math.inf), ("0s", math.inf), ("infinite", math.inf), ("-1s", math.inf)],
)
def test_the_config_says_how_often_the_node_is_read(tmp_path, text, seconds):
    assert read_node([worker(fill(tmp_path, NODE), f"core: {{sleepInterval: {text}}}")]).interval == seconds


def test_features_that_are_not_published_still_make_labels(tmp_path):
    root = worker(fill(tmp_path, NODE), "core: {noPublishFeatures: [kernel.config, 'system.*']}")
    read = read_node([root], node_name="n")
    assert "kernel.version" in read.features.names()
    assert not [name for name in read.features.names() if name == "kernel.config" or name.startswith("system.")]
    assert names.NFD_OS_ID in read.labels
    assert read_node([root]).interval is None
