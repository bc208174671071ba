"""The load client: sends requests at their planned times and notes what comes back. Judges nothing."""
