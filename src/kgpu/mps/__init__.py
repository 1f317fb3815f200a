"""MPS: the control daemons through which containers share a GPU with limits of memory and threads."""
