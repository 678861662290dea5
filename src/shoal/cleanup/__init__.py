"""What could be removed (leftovers, near copies, old outputs), and moving it away so that it can come back."""
