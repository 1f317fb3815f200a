"""The embedded cluster: API server, controllers and scheduler in one Python process, without root."""
