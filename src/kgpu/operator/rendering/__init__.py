"""Renders every object that a ClusterPolicy asks for, as plain dictionaries to apply: ``render.render``.

Pure: the same policy, settings and cluster give the same objects in the same order. An error in one operand is in
``Rendered.errors`` under its name and never stops the others.
"""
