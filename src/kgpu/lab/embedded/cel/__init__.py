"""Kubernetes' dialect of CEL, for the rules of CRDs and for admission policies."""
