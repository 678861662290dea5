"""A Lightning program that gets everything from its command line."""

from lightning.pytorch.cli import LightningCLI

LightningCLI()
