"""Rows HW: the devices themselves, by errors, by readings, and by the verdicts of kgpu's agent."""
