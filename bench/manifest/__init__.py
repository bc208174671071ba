"""What serves now, written down so that it can be put back: the manifest, what differs from it, and the way back."""
