"""``python -m headrace.cli``: the command, where no script of it is on the path."""

import sys

from .main import main

sys.exit(main())
