"""kgpu makes accelerators usable on Kubernetes, and says why when they are not."""

__version__ = "0.1.0"
