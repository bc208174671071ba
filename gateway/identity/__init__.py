"""Who calls: keys by their hashes, and the judgement of credentials. Knows no HTTP library and no policy."""
