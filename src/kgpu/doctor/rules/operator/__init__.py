"""Rows OPR: the operator, its objects and its pods."""
