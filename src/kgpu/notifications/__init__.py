"""Tells people outside the cluster by a webhook: ``notifier`` takes advice from any component; README.md says how."""
