"""A second policy that decides on the same arrivals, and is only counted.

Pure, like the core that it runs: no clock, no I/O. Changes nothing of what it looks at.
"""
