"""Optional: plain sends by a compiled module. ``make run`` builds it where it can; Python does the same."""
