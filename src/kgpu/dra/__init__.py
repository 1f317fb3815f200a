"""DRA: GPUs and slices as claims."""
