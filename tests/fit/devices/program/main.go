// Asks the allocator of kube-scheduler itself. One case per line of standard input, one answer per line of standard
// output, both JSON; tests/fit/devices/oracle.py is the other end.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type heldDevice struct {
	Driver, Pool, Device string
	ShareID              string
	Consumed             map[resourceapi.QualifiedName]resource.Quantity
}

type question struct {
	Features structured.Features
	Node     *corev1.Node
	Slices   []*resourceapi.ResourceSlice
	Classes  []*resourceapi.DeviceClass
	Claims   []*resourceapi.ResourceClaim
	Held     []heldDevice
	Times    int
}

type answer struct {
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error,omitempty"`
	OnNode  bool                           `json:"onNode,omitempty"`
	Panic   string                         `json:"panic,omitempty"`
	Late    bool                           `json:"late,omitempty"`
}

type classList map[string]*resourceapi.DeviceClass

func (list classList) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := list[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("no class %s", name)
}

func (list classList) List() ([]*resourceapi.DeviceClass, error) {
	return nil, errors.New("nobody lists")
}

func state(held []heldDevice) structured.AllocatedState {
	found := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, device := range held {
		id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
		if device.ShareID == "" {
			found.AllocatedDevices.Insert(id)
			continue
		}
		share := types.UID(device.ShareID)
		found.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &share))
		if device.Consumed != nil {
			found.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.Consumed))
		}
	}
	return found
}

func ask(about question) (found answer) {
	defer func() {
		if trouble := recover(); trouble != nil {
			found = answer{Panic: fmt.Sprint(trouble)}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	classes := classList{}
	for _, class := range about.Classes {
		classes[class.Name] = class
	}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: about.Features.ConsumableCapacity})
	allocator, err := structured.NewAllocator(ctx, about.Features, state(about.Held), classes, about.Slices, cache)
	if err == nil {
		found.Results, err = allocator.Allocate(ctx, about.Node, about.Claims)
	}
	if err != nil {
		found.Error = err.Error()
		found.OnNode = errors.Is(err, structured.ErrFailedAllocationOnNode)
		found.Late = ctx.Err() != nil
	}
	return found
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var about question
		if err := json.Unmarshal(line, &about); err != nil {
			panic(err)
		}
		answers := []answer{}
		for range max(about.Times, 1) {
			answers = append(answers, ask(about))
		}
		text, err := json.Marshal(answers)
		if err != nil {
			panic(err)
		}
		out.Write(text)
		out.WriteByte('\n')
		out.Flush()
	}
}
