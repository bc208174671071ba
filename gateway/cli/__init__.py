"""The commands of the console script: each parses, calls, prints. Imported by gateway.__main__ alone."""
