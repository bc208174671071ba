"""The engine behind the target, seen through its own endpoints: counters, gauges, version."""
