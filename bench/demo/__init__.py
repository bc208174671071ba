"""`gateway demo`: policy against baseline on the embedded engine, in about a minute."""
