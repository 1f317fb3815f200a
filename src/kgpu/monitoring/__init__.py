"""Alert rules, recording rules and dashboards as data; README.md says what is where."""
