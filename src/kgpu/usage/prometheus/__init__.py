"""What agents have counted, read back from a Prometheus that has scraped them. See ``README.md``."""
