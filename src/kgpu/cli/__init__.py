"""Arguments and printing; components are imported inside command functions."""
