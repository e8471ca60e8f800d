"""One run, from config to finished model."""
