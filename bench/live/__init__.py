"""Open-loop replay of a trace against a router, and the suites of runs built on it."""
