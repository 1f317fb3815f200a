"""Every object that a ClusterPolicy asks for, as plain dictionaries to be applied: ``render.render``.

Pure: the same policy, settings and cluster give the same objects in the same order. What is wrong with one operand is
in ``Rendered.errors`` under its name and never stops the others.
"""
