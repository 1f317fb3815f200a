"""Rows KRN: the kernel module of the driver, and the devices that it can't start."""
