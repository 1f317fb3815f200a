"""Who may have how many accelerators, who has them, and which quotas count nothing."""
