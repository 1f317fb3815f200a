"""Hardware that isn't there: a simulated driver root that real programs believe."""
