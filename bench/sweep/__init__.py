"""Engine settings compared on the same arrivals: one engine, started by the bench, with other flags for each cell."""
