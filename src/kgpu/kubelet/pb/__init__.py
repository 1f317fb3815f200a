"""Messages generated from ../protos; import them only inside kgpu.kubelet."""
