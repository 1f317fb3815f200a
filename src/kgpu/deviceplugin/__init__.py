"""The device plugin: offers accelerators and partitions to the kubelet. Read plan.py first."""
