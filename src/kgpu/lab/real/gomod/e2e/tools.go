// Names the programs that are built from this module, so that go.mod and go.sum pin them: Kubernetes' own end-to-end
// tests (e2e.test) and what their pods run (agnhost).
//go:build tools

package tools

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
