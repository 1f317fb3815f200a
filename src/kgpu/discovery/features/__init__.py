"""Feature labels of the node itself: PCI devices, kernel, operating system, CPU. Read plan.py first."""
