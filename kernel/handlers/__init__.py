"""What the kernel itself answers: one file per family of requests."""
