"""MIG: how GPUs are cut into slices, and the fewest steps from one layout to another."""
