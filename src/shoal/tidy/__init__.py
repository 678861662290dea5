"""Tidying up: what could go (leftovers, near copies), and moving it away so that it can come back (backup)."""
