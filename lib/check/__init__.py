"""The graded checks. In a notebook: `check.send_recv(send_recv)`; later cells run `use(send_recv)`."""

from lib.check.framework import CheckFailed, use
from lib.check.lab0 import send_recv

__all__ = ["CheckFailed", "send_recv", "use"]
