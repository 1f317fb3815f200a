"""What GPUs are used for and what that costs: states, shares, prices and reports, from recorded counters."""
