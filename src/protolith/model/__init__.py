"""Transformers models: built from a config, their loss, attention kernels, export and generation."""
