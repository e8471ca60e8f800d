"""On-disk formats: names and meaning of files, without torch or numpy."""
