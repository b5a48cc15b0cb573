"""What a policy sees of a prompt: its length, and the hashes of its blocks where the policy wants them.

Lengths are exact where the prompt was tokenized or came as token ids, and else estimated from its bytes: the queues
they are compared in only need the order of magnitude. Hashing never refuses a request: a prompt that cannot be read
here is estimated, and the worker says what is wrong with it.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from disagg_contract.chat import ROLES, ChatMessage, encode_chat
from disagg_contract.hashing import block_hashes, root_digest
from disagg_contract.tokenizer import Tokenizer
from disagg_router.core.bodies import Inbound

BYTES_PER_TOKEN: Final = 5
"""Of English text with the default tokenizer, quotes and keys of JSON included."""


class PromptView(msgspec.Struct, frozen=True):
    """``tokens`` and ``blocks`` of the prompt; ``hashes`` of its full blocks, first block first, may be empty."""

    tokens: int
    blocks: int
    hashes: Sequence[bytes] = ()


class PromptReader(Protocol):
    """Turns a request into what policies compare."""

    def view(self, request: Inbound, *, block_tokens: int) -> PromptView: ...


class EstimatingReader:
    """Lengths from the size of the prompt."""

    def view(self, request: Inbound, *, block_tokens: int) -> PromptView:
        return _sized(estimate_tokens(request), block_tokens)


class HashingReader:
    """Lengths and block hashes from the token ids of the prompt. ``tokenizer`` is the workers' own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._roots: dict[tuple[str, str | None], bytes] = {}

    def view(self, request: Inbound, *, block_tokens: int) -> PromptView:
        try:
            tokens = self._tokens(request)
        except (msgspec.MsgspecError, UnicodeError, OverflowError):
            tokens = None
        if not tokens:
            return _sized(estimate_tokens(request), block_tokens)
        try:
            hashes = block_hashes(tokens, block_tokens=block_tokens, root=self._root(request))
        except (OverflowError, TypeError):  # ids that are no token ids
            hashes = []
        return PromptView(len(tokens), -(-len(tokens) // block_tokens), hashes)

    def _tokens(self, request: Inbound) -> list[int] | None:
        raw = request.fields.get("messages")
        if raw is not None:
            messages = [
                ChatMessage(message.role if message.role in ROLES else "user", _text(message.content))
                for message in _messages.decode(raw)
            ]
            return encode_chat(self._tokenizer, messages)
        raw = request.fields.get("prompt")
        if raw is None:
            return None
        prompt = _prompts.decode(raw)
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], int):
            return list(prompt)
        if len(prompt) == 1:
            only = prompt[0]
            return self._tokenizer.encode(only) if isinstance(only, str) else list(only)
        return None

    def _root(self, request: Inbound) -> bytes:
        salt = _string(request.fields.get("cache_salt"))
        root = self._roots.get((request.model, salt))
        if root is None:
            root = root_digest(model=request.model, salt=salt)
            if salt is None:
                self._roots[request.model, salt] = root
        return root


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str = "user"
    content: str | list[_Part] | None = None


_messages: Final = msgspec.json.Decoder(list[_Message])
_prompts: Final[Any] = msgspec.json.Decoder(str | list[int | str | list[int]])


def estimate_tokens(request: Inbound) -> int:
    """Tokens of the prompt, from the bytes that hold it; at least 1."""
    raw = request.fields.get("prompt") or request.fields.get("messages")
    if raw is None:
        return 1
    data = bytes(raw)
    if data[:1] == b"[" and data[1:2].isdigit():
        return data.count(b",") + 1
    return max(1, len(data) // BYTES_PER_TOKEN)


def _sized(tokens: int, block_tokens: int) -> PromptView:
    return PromptView(tokens, -(-tokens // block_tokens))


def _text(content: str | list[_Part] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _string(raw: msgspec.Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=str | None)
    except msgspec.MsgspecError:
        return None
