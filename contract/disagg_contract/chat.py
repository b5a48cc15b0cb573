"""The chat template: messages to token ids, deterministic and stable over turns.

Every turn is ``<|role|> content <|end|>`` with nothing of its own between turns, so the ids of a conversation are a
prefix of the ids of the same conversation with more turns. An answer is generated behind ``<|assistant|>`` and ends
with ``<|end|>``: sent back as an assistant message in the next turn, it gives the very ids that were generated, and the
prefix cache still holds them. Contents are kept as they are: stripped or rewritten text would break that.

Markers are special tokens where the vocabulary has them, and plain text where it doesn't (a given ``tokenizer.json``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

from disagg_contract.tokenizer import Tokenizer

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: Final[tuple[Role, ...]] = ("system", "developer", "user", "assistant", "tool")

_MARKERS: Final[dict[Role, str]] = {
    "system": "<|system|>",
    "developer": "<|system|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "tool": "<|tool|>",
}
_END: Final = "<|end|>"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn; ``content`` is its text (text parts already joined)."""

    role: Role
    content: str


def template_digest() -> str:
    """Hex digest of the template, compared at registration."""
    spelled = "\0".join(f"{role}={_MARKERS[role]}" for role in ROLES) + "\0" + _END
    return blake2b(b"disagg/chat/1" + spelled.encode(), digest_size=16).hexdigest()


def encode_chat(tokenizer: Tokenizer, messages: Sequence[ChatMessage], *, generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation, with the opening of the assistant's answer unless ``generation_prompt`` is false."""
    end = _marker(tokenizer, _END)
    tokens: list[int] = []
    for message in messages:
        tokens += _marker(tokenizer, _MARKERS[message.role])
        tokens += tokenizer.encode(message.content)
        tokens += end
    if generation_prompt:
        tokens += _marker(tokenizer, _MARKERS["assistant"])
    return tokens


def _marker(tokenizer: Tokenizer, name: str) -> list[int]:
    if name == _END:
        return [tokenizer.eos_id]
    found = tokenizer.special_id(name)
    return tokenizer.encode(name) if found is None else [found]
