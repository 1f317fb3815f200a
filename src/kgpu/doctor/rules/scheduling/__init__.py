"""Rows SCH: why no node is found for a pod."""
