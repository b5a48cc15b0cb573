"""Who belongs to a deployment: whoever holds its token.

A token file holds one token a line. The first one is what a member shows to others; every line is accepted. That makes
a rotation three steps that nobody has to take at the same time: the new token is put below the old one (all learn to
accept it), then above it (all begin to show it), then the old one goes. A member that has not yet seen a step is
still understood by those that have, as long as no one is two steps behind.

Over HTTP a token travels as ``Authorization: Bearer``. On the connections that KV is pulled over it does not travel
at all: the serving side sends a nonce, the pulling side answers with HMAC-SHA256 over the nonce and the engine it wants
to talk to, so that what a listener hears proves nothing on the next connection nor to another engine.

``TokenKeeper`` reads through a function and knows time through another one, so nothing here does I/O. Tokens are in no
message, error or ``repr`` of this module.
"""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from disagg_contract.errors import ConfigError

TOKEN_FILE_KEY: Final = "tokens"
"""Key of a deployment's Secret that holds a token file, and the name of the file where the Secret is mounted."""
AUTHORIZATION: Final = "authorization"
"""The HTTP header that a token travels in, in lower case."""
NONCE_BYTES: Final = 32
REREAD_SECONDS: Final = 1.0
"""A token file is read anew when it is needed and what is known of it is older than this."""
DOUBT_SECONDS: Final = 0.05
"""The same when a token is not known: it may be newer than what was read."""
MOST_TOKENS: Final = 8

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
_PURPOSE: Final = b"disagg kv pull 1"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a file: ``values[0]`` is shown, each of them is accepted."""

    values: tuple[str, ...] = field(repr=False)

    @staticmethod
    def parse(content: bytes, *, name: str) -> "Tokens":
        """Read a token file. Raises ConfigError that names the file and the line, never what stands there."""
        lines = [line.strip() for line in content.decode("latin-1").splitlines()]
        values = [(number, line) for number, line in enumerate(lines, start=1) if line]
        for number, line in values:
            if not _TOKEN.fullmatch(line):
                raise ConfigError(
                    f"{name}: line {number} is no token; a token has 16 to 512 letters, digits and -._~+/="
                )
        if not 1 <= len(values) <= MOST_TOKENS:
            raise ConfigError(f"{name}: {len(values)} tokens; expected 1 to {MOST_TOKENS}, one a line")
        return Tokens(tuple(line for _, line in values))

    def render(self) -> bytes:
        """The content of a token file."""
        return "".join(f"{value}\n" for value in self.values).encode()

    @property
    def bearer(self) -> str:
        """Value of the Authorization header that a member sends."""
        return f"Bearer {self.values[0]}"

    def admit_bearer(self, header: str | None) -> bool:
        """Whether an Authorization header holds a token that is accepted; takes the same time for each wrong one."""
        scheme, _, rest = (header or "").partition(" ")
        shown = rest.strip().encode(errors="surrogateescape")
        right = [hmac.compare_digest(shown, value.encode()) for value in self.values]
        return scheme.lower() == "bearer" and any(right)

    def prove(self, nonce: bytes, *, engine_id: str) -> bytes:
        """What the pulling side answers to a nonce of that engine."""
        return _mac(self.values[0], nonce, engine_id)

    def admit_proof(self, mac: bytes, nonce: bytes, *, engine_id: str) -> bool:
        """Whether that answer came from somebody who holds a token that is accepted."""
        right = [hmac.compare_digest(mac, _mac(value, nonce, engine_id)) for value in self.values]
        return any(right)


def _mac(token: str, nonce: bytes, engine_id: str) -> bytes:
    parts = (_PURPOSE, nonce, engine_id.encode())
    return hmac.digest(token.encode(), b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


class TokenKeeper:
    """The tokens of one file, read anew as it changes.

    ``read`` returns the file's content; ``monotonic`` gives seconds; ``say`` is told, in a sentence without any token,
    when other tokens are used and when the file cannot be read. Tokens that were read once stay until they are
    replaced by others: a file that is gone for a moment opens nothing and shuts nobody out. Raises ConfigError at the
    start if there is no token to begin with, so that nothing runs open that was told not to.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], bytes],
        *,
        monotonic: Callable[[], float],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._read = read
        self._monotonic = monotonic
        self._say = say
        self._complaint = ""
        self._read_at = monotonic()
        try:
            self._content = read()
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror or error}; expected a file with a token a line") from error
        self._tokens = Tokens.parse(self._content, name=name)

    @property
    def tokens(self) -> Tokens:
        """The tokens as they are now."""
        self._refresh(REREAD_SECONDS)
        return self._tokens

    def admit_bearer(self, header: str | None) -> bool:
        """See :meth:`Tokens.admit_bearer`."""
        return self.tokens.admit_bearer(header) or (self._refresh(DOUBT_SECONDS) and self._tokens.admit_bearer(header))

    def admit_proof(self, mac: bytes, nonce: bytes, *, engine_id: str) -> bool:
        """See :meth:`Tokens.admit_proof`."""
        return self.tokens.admit_proof(mac, nonce, engine_id=engine_id) or (
            self._refresh(DOUBT_SECONDS) and self._tokens.admit_proof(mac, nonce, engine_id=engine_id)
        )

    def _refresh(self, patience_seconds: float) -> bool:
        """Read the file if it was not read for so long. True if other tokens hold now."""
        now = self._monotonic()
        if now - self._read_at < patience_seconds:
            return False
        self._read_at = now
        try:
            content = self._read()
            if content == self._content:
                self._complaint = ""
                return False
            tokens = Tokens.parse(content, name=self._name)
        except OSError as error:
            self._complain(f"{self._name}: {error.strerror or error}; the tokens known so far stay in use")
            return False
        except ConfigError as error:
            self._complain(f"{error}; the tokens known so far stay in use")
            return False
        self._tokens, self._content, self._complaint = tokens, content, ""
        self._say(f"{self._name} has changed; accepted tokens: {len(tokens.values)}")
        return True

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            self._say(complaint)
