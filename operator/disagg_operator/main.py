"""``disagg operator``: what the chart starts."""

import asyncio
import logging

from disagg_contract.config import OperatorConfig
from disagg_operator.shell.kube.operator import operate

log = logging.getLogger("disagg_operator")

QUIET = ("kopf", "aiohttp.access", "kubernetes", "asyncio")
"""Loggers that speak at every event; their warnings still count."""


def run(config: OperatorConfig) -> int:
    """Run the operator until a signal; 0 after a clean stop.

    Raises OperatorError when it cannot start or must stop acting (a lost lease): the pod then starts anew.
    """
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    asyncio.run(operate(config))
    log.info("stopped")
    return 0
