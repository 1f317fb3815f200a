"""The checks: each turns what was seen of the node into one ``CheckResult``. Pure, but for what they are given."""
