"""What if: where pods would go after a change to the cluster, by the scheduler's own filters and scores."""
