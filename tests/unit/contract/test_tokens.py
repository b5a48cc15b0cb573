from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.errors import ConfigError
from disagg_contract.tokens import DOUBT_SECONDS, MOST_TOKENS, REREAD_SECONDS, TokenKeeper, Tokens

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


class File:
    """A token file, a clock, and what was said."""

    def __init__(self, *lines: str) -> None:
        self.content = "\n".join(lines).encode()
        self.now = 100.0
        self.reads = 0
        self.error: OSError | None = None
        self.said: list[str] = []

    def write(self, *lines: str) -> None:
        self.content = "\n".join(lines).encode()

    def read(self) -> bytes:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.content

    def keeper(self) -> TokenKeeper:
        return TokenKeeper("tokens", self.read, monotonic=lambda: self.now, say=self.said.append)


def test_the_first_token_is_shown_and_each_is_accepted() -> None:
    tokens = Tokens.parse(f"{NEW}\n\n {OLD} \n".encode(), name="f")
    assert tokens.bearer == f"Bearer {NEW}"
    assert tokens.admit_bearer(f"Bearer {NEW}")
    assert tokens.admit_bearer(f"bearer  {OLD}")
    assert Tokens.parse(tokens.render(), name="f") == tokens


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        NEW,
        f"Basic {NEW}",
        f"Bearer {NEW}x",
        f"Bearer {NEW[:-1]}",
        "Bearer é",
        "Bearer \udc80",
    ],
)
def test_anything_else_is_refused(header: str | None) -> None:
    assert not Tokens((NEW, OLD)).admit_bearer(header)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"short\n", b"with a space in the middle\n", b"\xff" * 20])
def test_a_file_without_tokens_is_refused_by_name_and_not_shown(content: bytes) -> None:
    with pytest.raises(ConfigError, match="secret-file") as caught:
        Tokens.parse(content, name="secret-file")
    assert "with a space" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_file_with_too_many_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"expected 1 to {MOST_TOKENS}"):
        Tokens.parse(f"{OLD}\n".encode() * (MOST_TOKENS + 1), name="f")


def test_tokens_are_in_no_repr() -> None:
    assert OLD not in repr(Tokens((OLD,)))


@given(st.binary(min_size=1, max_size=64), st.text(max_size=40), st.text(max_size=40))
def test_a_proof_holds_for_its_nonce_and_engine_alone(nonce: bytes, engine: str, other: str) -> None:
    tokens = Tokens((NEW, OLD))
    for known in (Tokens((NEW,)), Tokens((OLD,))):
        mac = known.prove(nonce, engine_id=engine)
        assert tokens.admit_proof(mac, nonce, engine_id=engine)
        assert not tokens.admit_proof(mac, nonce + b"x", engine_id=engine)
        assert tokens.admit_proof(mac, nonce, engine_id=other) == (engine == other)
    assert not tokens.admit_proof(Tokens(("x" * 16,)).prove(nonce, engine_id=engine), nonce, engine_id=engine)


def test_a_changed_file_is_read_anew_and_not_at_every_request() -> None:
    file = File(OLD)
    keeper = file.keeper()
    for _ in range(10):
        assert keeper.admit_bearer(f"Bearer {OLD}")
    assert file.reads == 1
    file.write(NEW, OLD)
    file.now += REREAD_SECONDS
    assert keeper.tokens.bearer == f"Bearer {NEW}"
    assert file.reads == 2
    assert file.said == ["tokens has changed; accepted tokens: 2"]


@pytest.mark.parametrize("shown", ["bearer", "proof"])
def test_an_unknown_token_is_looked_for_in_the_file_at_once(shown: str) -> None:
    file = File(OLD)
    keeper = file.keeper()
    asks: dict[str, Callable[[], bool]] = {
        "bearer": lambda: keeper.admit_bearer(f"Bearer {NEW}"),
        "proof": lambda: keeper.admit_proof(Tokens((NEW,)).prove(b"n", engine_id="e"), b"n", engine_id="e"),
    }
    file.now += DOUBT_SECONDS
    assert not asks[shown]()
    file.write(NEW)
    file.now += DOUBT_SECONDS
    assert asks[shown]()
    assert not keeper.admit_bearer(f"Bearer {OLD}")


def test_a_file_that_goes_or_breaks_changes_nothing_and_is_said_once() -> None:
    file = File(OLD)
    keeper = file.keeper()
    file.error = FileNotFoundError(2, "No such file")
    for _ in range(3):
        file.now += REREAD_SECONDS
        assert keeper.admit_bearer(f"Bearer {OLD}")
    assert len(file.said) == 1
    assert "No such file" in file.said[0]
    file.error = None
    file.write("bad")
    for _ in range(3):
        file.now += REREAD_SECONDS
        assert keeper.admit_bearer(f"Bearer {OLD}")
    assert len(file.said) == 2
    file.write(NEW)
    file.now += REREAD_SECONDS
    assert not keeper.admit_bearer(f"Bearer {OLD}")
    assert not any(token in line for line in file.said for token in (OLD, NEW))


def test_without_a_first_token_nothing_begins() -> None:
    file = File()
    with pytest.raises(ConfigError):
        file.keeper()
    file.error = PermissionError(13, "Permission denied")
    with pytest.raises(ConfigError, match="Permission denied"):
        file.keeper()
