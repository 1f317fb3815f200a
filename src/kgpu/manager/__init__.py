"""The cluster side of kgpu as one process, ``kgpu operator run``: leader election, status pages and controllers."""
