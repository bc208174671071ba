"""The status page: one file that needs nothing else."""
