"""The pods and workloads that do an operand's work, whatever the layout: their logs, and how they are restarted."""
