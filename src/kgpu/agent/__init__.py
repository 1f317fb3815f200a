"""The one process per node that hosts the roles."""
