"""Container engines' config files: where they are, what they say, and edits that touch only kgpu's own keys."""
