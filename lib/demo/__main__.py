"""`python -m lib.demo`."""

import sys

from lib.demo.command import main

if __name__ == "__main__":
    sys.exit(main())
