// Walks a node with the published Go bindings and prints what it sees as JSON.
//
// It is what a Go program (a device plugin, a feature discovery) does with NVML: devices, attributes, MIG profiles and
// devices, topology and links, and, with -wait N, the next N Xid events of all GPUs.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type slice struct {
	UUID, Profile          string
	Index, GI, CI          int
	MemoryMiB              uint64
	Multiprocessors        uint32
	GISlices, CISlices     uint32
	ParentUUID, DeviceName string
}

type gpu struct {
	Index, Minor             int
	UUID, Name, BusID        string
	Architecture, Brand      string
	Capability, Addressing   string
	MemoryBytes              uint64
	MigCapable, MigEnabled   bool
	FabricAttached, Coherent bool
	Profiles                 []string
	Slices                   []slice
	Levels                   []int
	ActiveLinks              int
	PowerMilliwatts          uint32
	Placements               map[string]int
	LinkPeers                map[string]int
	ComputeProcesses         int
}

type event struct {
	UUID string
	Xid  uint64
	GI   uint32
}

type view struct {
	Driver, Nvml string
	Cuda, Cycles int
	GPUs         []gpu
	Events       []event
}

func must(what string, ret nvml.Return) {
	if ret != nvml.SUCCESS {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, ret)
		os.Exit(1)
	}
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func slices(d device.Device, parent string) []slice {
	found := []slice{}
	migs, err := d.GetMigDevices()
	check("MIG devices", err)
	for _, m := range migs {
		var s slice
		var ret nvml.Return
		s.ParentUUID = parent
		s.UUID, ret = m.GetUUID()
		must("MIG uuid", ret)
		s.DeviceName, ret = m.GetName()
		must("MIG name", ret)
		s.Index, ret = m.GetIndex()
		must("MIG index", ret)
		s.GI, ret = m.GetGpuInstanceId()
		must("GI id", ret)
		s.CI, ret = m.GetComputeInstanceId()
		must("CI id", ret)
		profile, err := m.GetProfile()
		check("MIG profile", err)
		s.Profile = profile.String()
		attributes, ret := m.GetAttributes()
		must("attributes", ret)
		s.MemoryMiB, s.Multiprocessors = attributes.MemorySizeMB, attributes.MultiprocessorCount
		s.GISlices, s.CISlices = attributes.GpuInstanceSliceCount, attributes.ComputeInstanceSliceCount
		found = append(found, s)
	}
	return found
}

func look(i int, d device.Device, all []device.Device) gpu {
	g := gpu{Index: i, Profiles: []string{}, Levels: []int{}, Placements: map[string]int{}, LinkPeers: map[string]int{}}
	var ret nvml.Return
	var err error
	g.UUID, ret = d.GetUUID()
	must("uuid", ret)
	g.Name, ret = d.GetName()
	must("name", ret)
	g.Minor, ret = d.GetMinorNumber()
	must("minor", ret)
	g.BusID, err = d.GetPCIBusID()
	check("bus id", err)
	memory, ret := d.GetMemoryInfo()
	must("memory", ret)
	g.MemoryBytes = memory.Total
	g.Architecture, err = d.GetArchitectureAsString()
	check("architecture", err)
	g.Brand, err = d.GetBrandAsString()
	check("brand", err)
	g.Capability, err = d.GetCudaComputeCapabilityAsString()
	check("capability", err)
	g.Addressing, err = d.GetAddressingModeAsString()
	check("addressing", err)
	g.MigCapable, err = d.IsMigCapable()
	check("MIG capable", err)
	g.MigEnabled, err = d.IsMigEnabled()
	check("MIG enabled", err)
	g.FabricAttached, err = d.IsFabricAttached()
	check("fabric", err)
	g.Coherent, err = d.IsCoherent()
	check("coherent", err)
	profiles, err := d.GetMigProfiles()
	check("MIG profiles", err)
	for _, p := range profiles {
		g.Profiles = append(g.Profiles, p.String())
	}
	for number := 0; g.MigCapable && number < nvml.GPU_INSTANCE_PROFILE_COUNT; number++ {
		info, ret := d.GetGpuInstanceProfileInfo(number)
		if ret != nvml.SUCCESS {
			continue
		}
		places, ret := d.GetGpuInstancePossiblePlacements(&info)
		must("placements", ret)
		g.Placements[fmt.Sprint(info.Id)] = len(places)
	}
	if g.MigEnabled {
		g.Slices = slices(d, g.UUID)
	}
	for _, other := range all {
		level, ret := d.GetTopologyCommonAncestor(other)
		must("topology", ret)
		g.Levels = append(g.Levels, int(level))
	}
	for link := 0; link < nvml.NVLINK_MAX_LINKS; link++ {
		state, ret := d.GetNvLinkState(link)
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		g.ActiveLinks++
		pci, ret := d.GetNvLinkRemotePciInfo(link)
		must("link peer", ret)
		kind, ret := d.GetNvLinkRemoteDeviceType(link)
		must("link peer type", ret)
		g.LinkPeers[fmt.Sprintf("%d/%08x:%02x:%02x", kind, pci.Domain, pci.Bus, pci.Device)]++
	}
	g.PowerMilliwatts, ret = d.GetPowerUsage()
	must("power", ret)
	processes, ret := d.GetComputeRunningProcesses()
	must("processes", ret)
	g.ComputeProcesses = len(processes)
	return g
}

func wait(count int) []event {
	set, ret := nvml.EventSetCreate()
	must("event set", ret)
	total, ret := nvml.DeviceGetCount()
	must("count", ret)
	for i := 0; i < total; i++ {
		d, ret := nvml.DeviceGetHandleByIndex(i)
		must("handle", ret)
		supported, ret := d.GetSupportedEventTypes()
		must("event types", ret)
		must("register", d.RegisterEvents(nvml.EventTypeXidCriticalError&supported, set))
	}
	fmt.Fprintln(os.Stderr, "ready")
	found := []event{}
	for len(found) < count {
		data, ret := set.Wait(20000)
		must("wait", ret)
		uuid, ret := data.Device.GetUUID()
		must("event uuid", ret)
		found = append(found, event{UUID: uuid, Xid: data.EventData, GI: data.GpuInstanceId})
	}
	must("free", set.Free())
	return found
}

func main() {
	events := flag.Int("wait", 0, "Xid events to wait for")
	flag.Parse()
	v := view{GPUs: []gpu{}, Events: []event{}}
	var ret nvml.Return
	lib := nvml.New()                // one library for the bindings and the helpers: they ask it which symbols exist
	for ; v.Cycles < 3; v.Cycles++ { // load and unload: the bindings close the library at the last shutdown
		must("init", lib.Init())
		must("shutdown", lib.Shutdown())
	}
	must("init", lib.Init())
	v.Driver, ret = nvml.SystemGetDriverVersion()
	must("driver version", ret)
	v.Nvml, ret = nvml.SystemGetNVMLVersion()
	must("NVML version", ret)
	v.Cuda, ret = nvml.SystemGetCudaDriverVersion()
	must("CUDA version", ret)
	all, err := device.New(lib).GetDevices()
	check("devices", err)
	for i, d := range all {
		v.GPUs = append(v.GPUs, look(i, d, all))
	}
	if *events > 0 {
		v.Events = wait(*events)
	}
	check("print", json.NewEncoder(os.Stdout).Encode(v))
	must("shutdown", lib.Shutdown())
}
