"""What `harness list` shows."""
