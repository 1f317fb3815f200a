"""The embedded API's HTTP surface: paths, verbs and wire formats as the real API server has them, over ``ApiCore``."""
