"""Tests that some versions of Spark cannot run: `make test` has the newest version, `make test-matrix` the lowest."""

from __future__ import annotations

import pyspark
import pytest

_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

before_4_1 = pytest.mark.skipif(_VERSION >= (4, 1), reason="make test-matrix runs this with Spark 4.0")
before_4_2 = pytest.mark.skipif(_VERSION >= (4, 2), reason="make test-matrix runs this with Spark 4.0")
from_4_1 = pytest.mark.skipif(_VERSION < (4, 1), reason="Spark 4.0 does this in another way, or not at all")
