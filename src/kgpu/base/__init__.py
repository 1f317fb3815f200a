"""Errors, supervision, backoff, atomic files: what every other layer stands on; standard library only."""
