"""Rows TNT, TOP and ASC: taints and labels of nodes, how they are built, and who adds and removes them."""
