"""NVIDIA accelerators through NVML, called in a child process with a deadline."""
