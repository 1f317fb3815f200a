"""The cluster's side of kgpu as one process, ``kgpu operator run``: leader election, pages, and controllers."""
