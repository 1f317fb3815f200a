"""Says of every GPU whether it is well, on what evidence, and what to do. Read plan.py first."""
