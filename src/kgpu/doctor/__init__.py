"""Why a GPU pod is stuck, with proof and a remedy: evidence in, findings out. Start with README.md and plan.py."""
