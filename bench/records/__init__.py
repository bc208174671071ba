"""What a run leaves on disk: one folder, with configuration, requests, measurements and verdict apart."""
