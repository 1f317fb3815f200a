"""Brings accelerators into containers through CDI. Read plan.py first."""
