// Names the program that is built from this module, so that go.mod and go.sum pin it.
//go:build tools

package tools

import (
	_ "sigs.k8s.io/prometheus-adapter/cmd/adapter"
)
