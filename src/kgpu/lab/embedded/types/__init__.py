"""What the real kinds' own strategies say: decoding, defaults, preparation, validation, admission and quota."""
