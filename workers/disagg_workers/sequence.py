"""One answer in the making: a choice of a request, from its prompt to its last token.

The loop decides when; this object decides what. After every iteration it writes what was computed into the blocks that
the loop gave it (`computed`), and for each token the loop says now exists it draws the token from what the blocks hold
(`sample`), decides whether the answer ends there, and turns it into text.

An answer ends, in vLLM's order, by its end token or a stop token or string (``stop``), none of which count before
``min_tokens``, or by ``max_tokens`` (``length``).
"""

from collections.abc import Sequence

import msgspec

from disagg_contract.hashing import BlockChain
from disagg_contract.openai import Sampling, TokenLogprob
from disagg_contract.tokenizer import Tokenizer
from disagg_workers.contents import ContentStore, SequenceView
from disagg_workers.language import Language, choice_seed
from disagg_workers.text import AnswerText


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One token: the text it releases, whether it ended the answer, and the key of a block it completed."""

    index: int
    token: int
    text: str
    logprob: TokenLogprob | None
    finish_reason: str | None
    stop_reason: str | int | None
    block_key: bytes | None


class AnswerSequence:
    """See the module's text. ``index`` is the choice's number within its request."""

    def __init__(
        self,
        *,
        request_id: str,
        index: int,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        choice: int,
        resumed_tokens: int,
        default_seed: int,
        store: ContentStore,
        language: Language,
        tokenizer: Tokenizer,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.prompt_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.tokens = list(prompt)
        self.view = SequenceView(store)
        self.finished = False
        self.first_seconds: float | None = None
        self.last_seconds: float | None = None
        self.arrival_seconds = 0.0
        self._sampling = sampling
        self._seed = choice_seed(sampling.seed, choice, temperature=sampling.temperature, default=default_seed)
        self._answer_start = len(prompt) - resumed_tokens
        self._natural: int | None = None
        self._language = language
        self._tokenizer = tokenizer
        self._text = AnswerText(
            tokenizer.detokenizer(), stops=sampling.stop, include_stop=sampling.include_stop_str_in_output
        )
        self._chain = BlockChain(block_tokens=store.block_tokens, root=store.root)
        self._chain.extend(prompt)

    @property
    def generated_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def block_keys(self) -> tuple[bytes, ...]:
        """Keys of the full blocks known so far."""
        return tuple(self._chain.hashes)

    def computed(self, block_ids: Sequence[int], *, start_tokens: int, new_tokens: int) -> None:
        """The KV of tokens ``start_tokens`` to ``start_tokens + new_tokens`` was computed into ``block_ids``.

        What lies before and was not read yet (cached, pulled, or everything after a preemption) is read first.
        """
        if self.view.tokens != start_tokens:
            self.view.read(block_ids, start_tokens)
        self.view.write(block_ids, self.tokens[start_tokens : start_tokens + new_tokens])

    def sample(self, block_ids: Sequence[int], *, seconds: float, logits: bytes | None = None) -> Sampled:
        """Draw the next token at engine time ``seconds``, from ``logits`` if another instance sent them."""
        view = self.view.digest if logits is None else logits
        sampling, position = self._sampling, len(self.tokens)
        number = position - self.prompt_tokens + 1
        if self._natural is None:
            self._natural = self._draw_length(block_ids, view)
        free = number > sampling.min_tokens
        ends = free and not sampling.ignore_eos and position - self._answer_start + 1 >= self._natural
        token = self._language.eos_id if ends else self._language.next_token(view, seed=self._seed, position=position)
        self.tokens.append(token)
        key = self._chain.append(token)
        if self.first_seconds is None:
            self.first_seconds = seconds
        self.last_seconds = seconds
        return self._describe(token, number, view, key, ends=ends, free=free)

    def _draw_length(self, block_ids: Sequence[int], view: bytes) -> int:
        if self._answer_start < self.prompt_tokens:
            view = self.view.digest_at(block_ids, self._answer_start)
        return self._language.answer_tokens(view, seed=self._seed)

    def _describe(self, token: int, number: int, view: bytes, key: bytes | None, *, ends: bool, free: bool) -> Sampled:
        sampling = self._sampling
        text = ""
        reason: str | None = None
        stop_reason: str | int | None = None
        if ends:
            reason = "stop"
        elif free and token in sampling.stop_token_ids:
            reason, stop_reason = "stop", token
        else:
            released = self._text.push(token, may_stop=free)
            text = released.text
            if released.stop is not None:
                reason, stop_reason = "stop", released.stop
        if reason is None and number >= self.max_tokens:
            reason = "length"
        if reason is not None and not self._text.stopped:
            rest = self._text.finish()
            text += rest.text
            if rest.stop is not None:
                reason, stop_reason = "stop", rest.stop
        self.finished = reason is not None
        logprob = None
        if sampling.logprobs is not None:
            own = self._tokenizer.decode([token])
            logprob = self._language.logprob(
                view, token, own, position=len(self.tokens) - 1, alternatives=sampling.logprobs
            )
        return Sampled(
            index=self.index,
            token=token,
            text=text,
            logprob=logprob,
            finish_reason=reason,
            stop_reason=stop_reason,
            block_key=key,
        )
