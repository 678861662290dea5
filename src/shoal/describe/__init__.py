"""From settings and experiment files to run specs. Nothing is submitted and nothing is changed here."""
