"""Batch scripts as text: bash words and commands, #SBATCH lines, sbatch flags, and quoting."""
