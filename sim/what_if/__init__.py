"""What each flag does: one changed at a time, on the same requests."""
