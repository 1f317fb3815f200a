"""What would fail when kgpu's chart and its driver are installed, predicted from what can be seen before."""
