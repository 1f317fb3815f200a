"""Rows DRA: claims of devices, and the drivers that offer them."""
