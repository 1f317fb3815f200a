"""Kubernetes' own end-to-end tests, run on both labs: what passes there is what may be called Kubernetes."""
