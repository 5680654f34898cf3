"""Functions travel by value, and keep the name of the file that they were written in: a verdict names file and line.

cloudpickle 3.1.3 and later write "<dynamic-code>" in its place.
"""

import io
import types
from collections import ChainMap
from typing import ClassVar

import cloudpickle


def _of_file(name, make, args):
    return make(*args).replace(co_filename=name)


def _reduced(code):
    return _of_file, (code.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](code))


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar = ChainMap({types.CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)


def dumps(thing) -> bytes:
    """`thing` as bytes, for `cloudpickle.load`. Raises what cloudpickle raises where something cannot be copied."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(thing)
    return buffer.getvalue()
