"""The parts of the operator's objects: metadata, pods, containers, permissions, monitors and NVIDIA's driver. Pure."""
