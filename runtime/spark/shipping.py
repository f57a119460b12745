"""Pickles for Spark's workers that say what to do if a worker has no forebay.

Spark pickles sources, readers and writers, and unpickles them on its workers. Without forebay there, Python's own error
names a module and no remedy. So a pickle holds the function that unpickles, by value: it runs where forebay is missing.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, SupportsIndex


class Shipped:
    """What Spark pickles for its workers."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        parts: Any = super().__reduce_ex__(protocol)  # how to make an object, with which arguments, and its state
        return unpack, (pickle.dumps(parts[:3]),)


def unpack(packed: bytes) -> object:
    """Return the object that was pickled. Spark gets this function by value, so it imports what it needs itself."""
    import pickle  # noqa: PLC0415
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    try:
        make, arguments, state = pickle.loads(packed)  # noqa: S301 - from Spark, as every task is
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "forebay":
            raise
        raise ModuleNotFoundError(
            f"{sys.executable} on {socket.gethostname()}, which runs Spark's Python code there, has no forebay: "
            "install it on every machine of the cluster, or ship an environment that has it (spark.archives) and set "
            "PYSPARK_PYTHON to its Python"
        ) from error
    made: Any = make(*arguments)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        made.__dict__.update(state)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
