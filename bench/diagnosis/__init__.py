"""What held a run up: figures of what was measured, rules over them as data, and the likely constraint. PURE."""
