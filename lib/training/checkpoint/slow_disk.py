"""A slow disk, emulated: files that take their time to be written. A fast machine then shows what a
slow disk does.

    write of m bytes     [.. m / rate seconds, asleep ..]          other threads go on

Each file, and each process, has the rate to itself. What is measured on it is labelled as emulated.
"""

import time


class PacedFile:
    """A file open for writing, not faster than `rate` bytes per second; else as the file itself."""

    def __init__(self, file, rate):
        self.file, self.rate, self.due = file, rate, time.monotonic()

    def write(self, data):
        written = self.file.write(data)
        self.due = max(self.due, time.monotonic() - 0.01) + written / self.rate
        if (left := self.due - time.monotonic()) > 0.001:
            time.sleep(left)
        return written

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


def slow_disk(rate):
    """open(path, mode) -> a file that is written at `rate` bytes per second. ValueError for
    a rate not above 0."""
    if not rate > 0:
        raise ValueError(f"rate is {rate}: give bytes per second, above 0")
    return lambda path, mode="wb": PacedFile(open(path, mode), rate)
