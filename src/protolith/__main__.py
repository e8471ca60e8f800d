"""``python -m protolith``: the same as the ``protolith`` command."""

from __future__ import annotations

import sys

from protolith.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
