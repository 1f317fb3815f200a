"""``make test``: every test, in parts that run beside each other.

Tests without a cluster need the cores; tests on real programs mostly wait. So the first run on every core at a low
priority, and the second in several processes of their own beside them. ``parts.py`` says which test is in which part;
add a row there only for what needs a cluster of its own.
"""
