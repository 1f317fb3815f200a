"""AMD's partition profiles: from a node's label to the compute and memory modes of its GPUs."""
