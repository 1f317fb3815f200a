"""The templates of node feature rules: Go's text/template with the functions that make labels. Read run.py first."""
