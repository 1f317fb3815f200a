"""The node's own files: driver root, device nodes, runtimes."""
