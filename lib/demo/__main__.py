"""`python -m lib.demo`."""

import sys

from lib.demo.command import main

sys.exit(main())
