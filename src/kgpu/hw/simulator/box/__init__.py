"""Simulated nodes of Gaudi accelerators and of Intel GPUs: one kind of profile, and a drawing of files for each."""
