"""Where numbers go: the metrics file, the console, and trackers outside."""
