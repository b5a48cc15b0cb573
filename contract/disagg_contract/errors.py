"""Errors of the contract.

    ContractError
    ├── ConfigError      a flag or environment variable has a value it cannot have
    │   └── ListenError  a port or address cannot be had (in ``listening``)
    └── DocumentError    a document or frame from the other side does not follow its schema

``disagg_contract.openai`` has an error of its own, because it becomes an HTTP answer.
"""


class ContractError(Exception):
    """Something said by the other side, or by the user, does not follow the contract."""


class ConfigError(ContractError):
    """A setting is wrong. The message names the flag, the value and what would be right."""


class DocumentError(ContractError):
    """A document does not follow its schema. The message names the field, the value and what would be right."""
