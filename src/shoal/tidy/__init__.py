"""Tidying up: what could go (leftovers, twins), and moving it away so that it can come back (backup)."""
