"""The port to the API server."""
