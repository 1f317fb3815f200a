"""The device plugin: offers accelerators and slices to the kubelet. Read plan.py first."""
