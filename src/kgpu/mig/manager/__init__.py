"""What follows a node's label of MIG, and sees to it that its GPUs are cut so."""
