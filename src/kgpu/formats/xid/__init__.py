"""Xids and SXids: what each number means, and what it calls for."""
