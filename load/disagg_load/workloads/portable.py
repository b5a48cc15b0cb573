"""Logarithm, exponential and normal quantile that give the same bits everywhere.

The elementary functions of NumPy and of the C library differ in their last bit between processors and versions, and one
different bit in one gap moves every later arrival. IEEE 754 fixes +, -, *, / and the square root, and frexp and ldexp
are exact, so functions built from these alone are reproducible; NumPy runs them one operation at a time, so nothing is
fused. They are accurate to about 1e-15, far below what a random variate needs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# ln 2 in two parts: a multiple of the first by an exponent is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_HALF_ROOT = 0.7071067811865476
_LOG_TERMS = tuple(1 / (2 * power + 1) for power in range(12, -1, -1))
_EXP_TERMS = (
    1 / 87178291200, 1 / 6227020800, 1 / 479001600, 1 / 39916800, 1 / 3628800, 1 / 362880, 1 / 40320,
    1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0,
)  # fmt: skip
_EXP_LOWEST = -800.0
"""exp of anything lower is 0 in double precision."""


def log(values: Floats) -> Floats:
    """Natural logarithm of finite numbers above 0: ln m + e ln 2, with ln m = 2 atanh((m - 1) / (m + 1))."""
    fraction, exponent = np.frexp(values)
    low = fraction < _HALF_ROOT
    fraction = np.where(low, 2 * fraction, fraction)
    power = np.where(low, exponent - 1, exponent).astype(np.float64)
    ratio = (fraction - 1) / (fraction + 1)
    series = _polynomial(_LOG_TERMS, ratio * ratio)
    result: Floats = power * _LN2_HIGH + (2 * ratio * series + power * _LN2_LOW)
    return result


def exp(values: Floats) -> Floats:
    """Exponential of numbers up to 700 (0 below -745): 2^k times the Taylor series of the rest."""
    values = np.maximum(values, _EXP_LOWEST)
    power = np.rint(values / (_LN2_HIGH + _LN2_LOW))
    rest = (values - power * _LN2_HIGH) - power * _LN2_LOW
    result: Floats = np.ldexp(_polynomial(_EXP_TERMS, rest), power.astype(np.int32))
    return result


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    """Horner's rule, the highest power's coefficient first."""
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= x
        result += coefficient
    return result


# Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics 37 (1988), routine
# PPND16: a numerator and a denominator for the centre, the tails and the far tails.
_CENTRE = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
        1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
        5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAILS = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
        3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
        6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0,
    ),
)  # fmt: skip
_FAR_TAILS = (
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
        2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
        1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0,
    ),
)  # fmt: skip


def normal_quantile(shares: Floats) -> Floats:
    """The standard normal numbers below which these shares (between 0 and 1) of all draws lie."""
    offset = shares - 0.5
    centre = offset * _ratio(_CENTRE, 0.180625 - offset * offset)
    tails = np.flatnonzero(np.abs(offset) > 0.425)
    share = shares[tails]
    depth = np.sqrt(-log(np.minimum(share, 1 - share)))
    size = np.where(depth <= 5, _ratio(_TAILS, depth - 1.6), _ratio(_FAR_TAILS, depth - 5))
    centre[tails] = np.where(share < 0.5, -size, size)
    return centre


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Floats) -> Floats:
    return _polynomial(coefficients[0], x) / _polynomial(coefficients[1], x)
