"""An emulated slow disk: writing a file sleeps for as long as a slow disk would take. In this way a
fast machine can show what a slow disk does to training.

    write of m bytes     [.. m / rate seconds, asleep ..]          other threads go on

Each file has this rate to itself, so two files, or two processes, write twice as fast as one.
Whatever is measured with such files is labelled as emulated.
"""

import time


class PacedFile:
    """A file opened for writing that accepts about `rate` bytes per second. Otherwise it behaves
    like the file that it wraps."""

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
    """Returns an `open(path, mode)` whose files are written at `rate` bytes per second. Raises
    ValueError for a rate that is not above 0."""
    if not rate > 0:
        raise ValueError(f"rate is {rate}: give bytes per second, above 0")
    return lambda path, mode="wb": PacedFile(open(path, mode), rate)
