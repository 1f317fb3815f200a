"""The checks: each turns facts about the node into one ``CheckResult``. Pure."""
