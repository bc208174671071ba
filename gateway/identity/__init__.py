"""Who calls: keys by their hashes, tokens by their signatures. Knows no HTTP library and no policy."""
