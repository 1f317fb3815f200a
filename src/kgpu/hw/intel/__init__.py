"""Intel's GPUs, by the files of the drivers i915 and xe."""
