"""What a policy sees of a prompt: its length, and the hashes of its blocks where the policy wants them.

Lengths are exact where the prompt was tokenized or came as token ids, and else estimated from its bytes: the queues
they are compared in only need the order of magnitude. Hashing never refuses a request: a prompt that cannot be read
here is estimated, and the worker says what is wrong with it.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import msgspec

from disagg_contract.chat import ROLES, ChatMessage, encode_chat
from disagg_contract.hashing import pack_tokens, root_digest
from disagg_contract.tokenizer import Tokenizer
from disagg_router.core.bodies import Inbound
from disagg_router.core.chains import TOKEN_BYTES, ChainMemo, RememberingTokenizer, TextPacker

BYTES_PER_TOKEN: Final = 5
"""Of English text with the default tokenizer, quotes and keys of JSON included."""

HASHED_BYTES: Final = 1024 * 1024
"""Longest prompt, as JSON, that is tokenized and hashed here. Text can cost microseconds a byte, in which nothing else
is served, and bodies are megabytes; a longer prompt is estimated, and finds its worker by load alone."""


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
        self._packer = TextPacker(tokenizer)
        # The template encodes texts and asks for markers; the rest of the interface is not its business.
        self._chat_tokenizer = cast(Tokenizer, RememberingTokenizer(tokenizer, self._packer))
        self._memo = ChainMemo()
        self._roots: dict[str, bytes] = {}

    def view(self, request: Inbound, *, block_tokens: int) -> PromptView:
        try:
            packed = self._pack(request)
        except (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError):  # the worker will say what is wrong
            packed = b""
        if not packed:
            return _sized(estimate_tokens(request), block_tokens)
        hashes = self._memo.hashes(packed, block_tokens=block_tokens, root=self._root(request))
        tokens = len(packed) // TOKEN_BYTES
        return PromptView(tokens, -(-tokens // block_tokens), hashes)

    def _pack(self, request: Inbound) -> bytes:
        """Packed token ids; nothing where the prompt is not one prompt."""
        raw = request.fields.get("messages")
        if len(raw or request.fields.get("prompt") or b"") > HASHED_BYTES:
            return b""
        if raw is not None:
            turns = [message.turn for message in _messages.decode(raw)]
            return pack_tokens(encode_chat(self._chat_tokenizer, turns))
        raw = request.fields.get("prompt")
        if raw is None:
            return b""
        prompt = _prompts.decode(raw)
        if len(prompt) == 1 and isinstance(prompt[0], str | list) and not isinstance(prompt, str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._packer.pack(prompt)
        if prompt and isinstance(prompt[0], int):
            return pack_tokens(prompt)
        return b""

    def _root(self, request: Inbound) -> bytes:
        salt = _string(request.fields.get("cache_salt"))
        root = self._roots.get(request.model) if salt is None else None
        if root is None:
            root = root_digest(model=request.model, salt=salt)
            if salt is None:
                self._roots[request.model] = root
        return root


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str = "user"
    content: str | list[_Part] | None = None

    @property
    def turn(self) -> ChatMessage:
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content) if content else ""
        return ChatMessage(self.role if self.role in ROLES else "user", content)


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


def _string(raw: msgspec.Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=str | None)
    except msgspec.MsgspecError:
        return None
