"""Simulated AMD GPUs: the files that the driver ``amdgpu`` shows of them."""
