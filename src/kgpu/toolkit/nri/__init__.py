"""The NRI plugin: containers that ask by environment or annotation get CDI devices, where a policy lets them."""
