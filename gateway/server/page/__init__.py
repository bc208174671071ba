"""The status page: files that need nothing else, shown as they are."""
