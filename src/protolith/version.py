"""The version, in the one place that packaging, the CLI and run records read."""

__version__ = "0.1.0"
