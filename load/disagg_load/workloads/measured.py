"""Quantiles of published traces, so that loads of the same statistics can be made without the files.

Sources: AzureLLMInferenceTrace_conv and _code (Azure Public Dataset, November 2023, CC-BY 4.0; Patel et al.,
"Splitwise", ISCA 2024) and Mooncake's conversation trace (Qin et al., FAST 2025, Apache-2.0). Only order statistics are
kept; inputs and outputs are drawn independently of each other (their correlation in the traces is -0.11, 0.00, 0.07).
"""

from __future__ import annotations

from .quantiles import QuantileTable


def _table(*values: float, percents: tuple[float, ...]) -> QuantileTable:
    return QuantileTable(tuple(zip(percents, values, strict=True)))


_LENGTHS = (0, 1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 75, 80, 85, 90, 95, 97, 98, 99, 99.5, 99.9, 100)

# fmt: off
AZURE_CONV_INPUT = _table(
    2, 29, 91, 181, 207, 372, 387, 396, 403, 703, 1020, 1071, 1130, 1189, 1315, 1876, 2734, 4083, 4090, 4098, 4142,
    4831, 6179, 14050, percents=_LENGTHS,
)
AZURE_CONV_OUTPUT = _table(
    7, 16, 24, 41, 54, 67, 77, 85, 91, 103, 129, 177, 384, 395, 400, 411, 424, 451, 509, 540, 601, 643, 954, 1000,
    percents=_LENGTHS,
)
AZURE_CODE_INPUT = _table(
    3, 17, 35, 75, 147, 232, 386, 578, 770, 1075, 1469, 1909, 2433, 2745, 3192, 3920, 5188, 7303, 7435, 7436, 7436,
    7436, 7437, 7437, percents=_LENGTHS,
)
AZURE_CODE_OUTPUT = _table(
    6, 6, 6, 6, 7, 7, 8, 9, 9, 11, 13, 16, 20, 24, 29, 39, 55, 90, 128, 171, 251, 359, 512, 780, 885, 932, 1899,
    percents=(*_LENGTHS[:-2], 99.7, 99.85, 99.95, 99.97, 100),
)
AZURE_CODE_GAPS_SECONDS = _table(
    0, 0.0002, 0.0012, 0.0033, 0.0151, 0.0638, 0.095, 0.1001, 0.1601, 0.2729, 0.4008, 0.5974, 0.7987, 1.0986, 2.2051,
    9.9783, 28.09, 50.41, 79.23, 132.5, 152.5, 217.2,
    percents=(0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97, 98, 98.5, 99, 99.5, 99.7, 99.85, 99.9, 99.95, 99.97, 100),
)
MOONCAKE_INPUT = _table(
    891, 894, 896, 901, 964, 1261, 1662, 2306, 3263, 4993, 6909, 9570, 13196, 15367, 17869, 21464, 27367, 39550, 52215,
    66449, 85400, 100810, 121301, 126195, percents=_LENGTHS,
)
MOONCAKE_OUTPUT = _table(
    1, 3, 3, 10, 24, 46, 100, 156, 213, 291, 350, 399, 447, 472, 504, 543, 597, 698, 800, 892, 1118, 1568, 2000, 2000,
    percents=_LENGTHS,
)
MOONCAKE_SHARED_SHARE = _table(0, 0.143, 0.524, 0.8, 0.931, 0.983, 1, percents=(0, 5, 25, 50, 75, 95, 100))
MOONCAKE_REQUESTS_BACK = _table(
    1, 100, 141, 229, 422, 901, 1661, 2129, 5105, 10514, percents=(0, 5, 10, 25, 50, 75, 90, 95, 99, 100)
)
# fmt: on
