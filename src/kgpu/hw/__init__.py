"""The port to accelerators: one reading of the hardware serves every role."""
