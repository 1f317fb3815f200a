"""The page that shows a cluster's GPUs in a browser: what is broken, who holds what, what is wasted, what waits."""
