"""The port to the kubelet's sockets: device plugin, registration, pod resources."""
