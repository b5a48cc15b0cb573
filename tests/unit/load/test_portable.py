"""The functions that shape random numbers: as exact as they need to be, and made of exact operations alone."""

import ast
from hashlib import sha256
from inspect import getsource
from math import exp, log
from statistics import NormalDist

import numpy as np
import pytest

from disagg_load.workloads import portable
from disagg_load.workloads.streams import Stream, Streams

SHARES = np.concatenate((Stream("shares").uniforms(5000), 10.0 ** -np.arange(1, 300), 1 - 10.0 ** -np.arange(1, 16)))


def test_logarithm() -> None:
    values = np.concatenate((SHARES, 1 / SHARES, [1.0, 2.0, 0.5, 1e308]))
    assert portable.log(values) == pytest.approx([log(value) for value in values], rel=1e-15, abs=1e-300)


def test_exponential() -> None:
    values = np.concatenate((1400 * SHARES - 700, SHARES, -SHARES))
    assert portable.exp(values) == pytest.approx([exp(value) for value in values], rel=1e-15)
    assert portable.exp(np.array([0.0, -1e300, -750.0])).tolist() == [1, 0, 0]


def test_normal_quantile() -> None:
    normal = NormalDist()
    assert portable.normal_quantile(SHARES) == pytest.approx(
        [normal.inv_cdf(share) for share in SHARES], rel=1e-14, abs=1e-15
    )


def test_only_operations_that_are_the_same_everywhere() -> None:
    """No sine, logarithm or power of NumPy's own, whose last bit depends on the processor."""
    used = {
        node.attr
        for node in ast.walk(ast.parse(getsource(portable)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    }
    exact = {"frexp", "ldexp", "rint", "sqrt", "abs", "where", "minimum", "maximum", "flatnonzero", "full_like"}
    assert used - exact == {"float64", "int32"}
    assert not [node for node in ast.walk(ast.parse(getsource(portable))) if isinstance(node, ast.Pow)]


def test_a_stream_does_not_depend_on_how_it_is_taken() -> None:
    whole = Stream("s").uniforms(1000)
    stream = Stream("s")
    parts = np.concatenate([stream.uniforms(count) for count in (1, 0, 99, 900)])
    assert (whole == parts).all()
    assert (Streams(1).stream("a").uniforms(9) != Streams(1).stream("b").uniforms(9)).all()
    assert (Streams(1).stream("a").uniforms(9) != Streams(2).stream("a").uniforms(9)).all()
    assert 0 < whole.min() < whole.max() < 1
    assert whole.mean() == pytest.approx(0.5, abs=0.03)


def test_sm6_the_numbers_of_a_seed_are_these() -> None:
    """Pinned: loads of a seed are the same on every machine and in every later version."""
    numbers = Streams(7).stream("arrivals").uniforms(4096)
    gaps, normals = -portable.log(numbers), portable.normal_quantile(numbers)
    sizes = portable.exp(normals)
    digests = [sha256(column.astype("<f8").tobytes()).hexdigest()[:16] for column in (numbers, gaps, normals, sizes)]
    assert digests == PINNED


PINNED = ["396ebeb29b73e21f", "cb9f8e269c22666c", "75509548f4a5ede5", "25966c20e465531d"]
