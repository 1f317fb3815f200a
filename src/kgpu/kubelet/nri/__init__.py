"""The Node Resource Interface: a container runtime's socket on which plugins look at containers before they start."""
