"""Scenarios: stories told with the commands that a person would type, run and checked on any lab.

A scenario is a YAML file beside this one (or anywhere else); ``model`` reads it, ``run`` plays it on a ``Backend``.
"""
