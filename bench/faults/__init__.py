"""Fault drills: what breaks, under which load, and what must be true of every request afterwards."""
