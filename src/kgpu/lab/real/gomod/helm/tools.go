// Names the programs that the lab builds from this module, so that go.mod and go.sum pin them.
//go:build tools

package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
