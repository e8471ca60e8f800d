"""One schema, two spellings, and the arithmetic of a run. See ``schema.py`` and ``load.py``."""
