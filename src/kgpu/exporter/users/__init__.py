"""Who uses which device: what the kubelet, cgroups, the API server and job files say; see README.md."""
