"""What objects are made of: metadata, pods, containers, rights, monitors and NVIDIA's driver; pure."""
