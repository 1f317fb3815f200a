"""``python -m bench`` is ``make bench``."""

import sys

from bench.run import main

sys.exit(main())
