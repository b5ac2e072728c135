"""Optional: plain sends by a compiled module. ``make fast`` builds it; without it the same work is done in Python."""
