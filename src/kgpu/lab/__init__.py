"""The lab: clusters with simulated accelerators, to try kgpu, to learn, and to test every part of it unchanged."""
