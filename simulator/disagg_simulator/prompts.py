"""Block keys of prompts: what a block ledger finds shared prefixes by.

A workload names the blocks of a prompt by ids that stand for the whole prefix up to their end. A ledger with smaller
blocks splits each id evenly; one with larger blocks could not tell where a shared prefix ends and is refused.
"""

from __future__ import annotations

from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Ledger
from disagg_simulator.errors import DeploymentError


class Prompts:
    """Keys of the full blocks of each prompt. Raises DeploymentError where the block sizes do not go together."""

    def __init__(self, requests: Columns, deployment: Deployment) -> None:
        self._ids = requests.hash_ids
        self._inputs = requests.input_tokens
        self._block = requests.block_tokens
        self._table: list[tuple[int, ...]] | None = None
        self._table_block = 0
        if self._ids is None:
            return
        for group in deployment.groups:
            if group.ledger is Ledger.BLOCKS and self._block % group.block_tokens:
                raise DeploymentError(
                    field=f"{group.role}.block_tokens",
                    value=group.block_tokens,
                    wanted=f"a divisor of the workload's {self._block}",
                )

    def keys(self, index: int, group: Group) -> tuple[int, ...]:
        """Keys of request `index` for that group's ledger; empty where nothing can be found by them."""
        if self._ids is None or group.ledger is not Ledger.BLOCKS:
            return ()
        if self._table is not None and self._table_block == group.block_tokens:
            return self._table[index]
        ids = self._ids[index]
        full = self._inputs[index] // group.block_tokens
        parts = self._block // group.block_tokens
        if parts == 1:
            return tuple(ids[:full])
        return tuple(one * parts + part for one in ids for part in range(parts))[:full]

    def table(self, group: Group) -> list[tuple[int, ...]]:
        """`keys` of all requests, which are kept."""
        block = group.block_tokens
        if self._ids is not None and group.ledger is Ledger.BLOCKS and self._block == block:
            table = [tuple(ids[: tokens // block]) for ids, tokens in zip(self._ids, self._inputs, strict=True)]
        else:
            table = [self.keys(index, group) for index in range(len(self._inputs))]
        if group.ledger is Ledger.BLOCKS:
            self._table, self._table_block = table, block
        return table
