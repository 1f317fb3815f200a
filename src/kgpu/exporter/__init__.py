"""What every accelerator does and for whom, as metrics that Prometheus reads; see README.md."""
