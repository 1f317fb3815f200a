"""CEL as Kubernetes speaks it, for whatever has expressions: the rules of CRDs and admission policies."""
