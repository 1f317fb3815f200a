"""CustomResourceDefinitions in the embedded API: their own rules, and those of the objects that they define."""
