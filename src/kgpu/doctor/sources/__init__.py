"""Where snapshots come from: a live cluster, files, this host. Each gives a ``Snapshot``, and says what is missing."""
