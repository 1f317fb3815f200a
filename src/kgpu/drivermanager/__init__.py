"""Prepares a node for the driver's container: lets go of the former driver and unloads it. Read plan.py first."""
