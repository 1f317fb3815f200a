"""Rows DRV: the driver, its containers, its versions, and the programs that use it."""
