"""Arrivals: when which class of request is sent, where it comes from, and how it is kept."""
