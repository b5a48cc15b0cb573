"""Only members of a deployment get in: at the workers' HTTP port, at the KV port, and from the router."""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from disagg_contract import ports
from disagg_contract.config import RouterConfig, WorkerConfig
from disagg_contract.errors import ConfigError
from disagg_contract.tokens import REREAD_SECONDS, Tokens
from disagg_contract.transfer import (
    PREFILL_LEG,
    STRANGER_FRAME_BYTES,
    Ack,
    Challenge,
    FrameReader,
    Proof,
    Pull,
    Refused,
    RemoteKV,
    Renew,
    encode_frame,
)
from disagg_router.shell.app import RouterApp
from disagg_workers.strangers import SILENCE_SECONDS, Strangers
from disagg_workers.transfer import server
from disagg_workers.worker import Worker

Begin = Callable[..., Awaitable[Any]]
OURS, THEIRS, NEXT = "ours-0123456789abcdef", "theirs-0123456789abcdef", "next-0123456789abcdef"
WORDS = "The quick brown fox jumps over the lazy dog and then sleeps. " * 4
PULLS = "disagg_worker_kv_transfer_seconds_count{"
GUARDED = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/opt-13b"),
    ("GET", ports.INFO_PATH),
    ("DELETE", ports.TRANSFERS_PATH + "/x"),
    ("GET", ports.DRAIN_PATH),
    ("POST", ports.DRAIN_PATH),
    ("DELETE", ports.DRAIN_PATH),
    ("POST", ports.SLOWDOWN_PATH),
    ("GET", "/nothing/here"),
    ("GET", ports.METRICS_PATH + "/"),
]


def url(worker: Worker) -> str:
    return f"http://127.0.0.1:{worker.port}"


def shows(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def complete(client: aiohttp.ClientSession, base: str, **fields: Any) -> tuple[int, Any]:
    headers = fields.pop("headers", {})
    body = {"prompt": WORDS, "max_tokens": 8, "seed": 1, **fields}
    async with client.post(base + "/v1/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def prefilled(client: aiohttp.ClientSession, tenant: Any, token: str = OURS) -> RemoteKV:
    """The prefill leg, as the router sends it."""
    leg = {"max_tokens": 1, "kv_transfer_params": PREFILL_LEG}
    status, document = await complete(client, url(tenant.prefill), headers=shows(token), **leg)
    assert status == 200
    return RemoteKV.from_params(document["kv_transfer_params"])


@pytest.mark.parametrize("shown", [{}, shows(THEIRS), {"Authorization": f"Basic {OURS}"}, shows(OURS[:-1])])
async def test_a_worker_refuses_strangers_in_openais_words(
    tenant: Begin, client: aiohttp.ClientSession, shown: dict[str, str]
) -> None:
    ours = await tenant("ours", OURS)
    for method, path in GUARDED:
        async with client.request(method, url(ours.decode) + path, headers=shown, data=b"{}") as answer:
            assert answer.status == 401, path
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            error = (await answer.json())["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_token")
    assert not ours.decode.lifecycle.draining


async def test_health_and_metrics_are_open_and_members_are_served(tenant: Begin, client: aiohttp.ClientSession) -> None:
    ours = await tenant("ours", OURS)
    for path in (ports.HEALTH_PATH, ports.METRICS_PATH):
        async with client.get(url(ours.decode) + path) as answer:
            assert answer.status == 200
    for path in (ports.INFO_PATH, ports.DRAIN_PATH, "/v1/models"):
        async with client.get(url(ours.decode) + path, headers=shows(OURS)) as answer:
            assert answer.status == 200
    assert (await complete(client, url(ours.decode), headers=shows(OURS)))[0] == 200


async def test_a_request_passes_both_legs_and_the_pull(tenant: Begin, client: aiohttp.ClientSession) -> None:
    ours, unlocked = await tenant("ours", OURS), await tenant("open")
    guarded, plain = [await complete(client, each.router.url) for each in (ours, unlocked)]
    assert guarded[0] == plain[0] == 200
    assert guarded[1]["choices"][0]["text"] == plain[1]["choices"][0]["text"]
    (pulled,) = [line for line in ours.decode.expose().decode().splitlines() if PULLS in line]
    assert pulled.endswith(" 1.0"), "the KV came over the wire and was not computed again"
    assert ours.prefill.strangers.count == ours.decode.strangers.count == 0
    assert len(ours.prefill.pins) == 0


async def test_what_a_client_shows_to_the_router_stays_there(tenant: Begin, client: aiohttp.ClientSession) -> None:
    ours = await tenant("ours", OURS)
    for shown in (shows("sk-a-key-of-the-client"), shows(THEIRS)):
        assert (await complete(client, ours.router.url, headers=shown))[0] == 200


async def test_tenants_cannot_reach_each_others_kv(tenant: Begin, client: aiohttp.ClientSession) -> None:
    ours, theirs = await tenant("ours", OURS), await tenant("theirs", THEIRS)
    remote = await prefilled(client, ours)
    assert remote.proof
    status, document = await complete(
        client, url(theirs.decode), headers=shows(THEIRS), kv_transfer_params=remote.to_params()
    )
    assert status == 200, "their worker computes the prompt itself"
    assert document["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ours.prefill.strangers.count >= 1
    assert len(ours.prefill.pins) == 1, "nor could they free it"
    status, _ = await complete(client, url(ours.decode), headers=shows(OURS), kv_transfer_params=remote.to_params())
    assert status == 200
    assert len(ours.prefill.pins) == 0


async def test_a_worker_without_a_token_pulls_nothing_from_one_with(
    tenant: Begin, client: aiohttp.ClientSession
) -> None:
    ours, unlocked = await tenant("ours", OURS), await tenant("open")
    remote = await prefilled(client, ours)
    status, _ = await complete(client, url(unlocked.decode), kv_transfer_params=remote.to_params())
    assert status == 200
    assert len(ours.prefill.pins) == 1


async def test_a_worker_with_a_token_pulls_from_one_that_asks_for_none(
    tenant: Begin, client: aiohttp.ClientSession
) -> None:
    """While a deployment learns its token, old and new workers stand side by side."""
    ours, unlocked = await tenant("ours", OURS), await tenant("open")
    remote = await prefilled(client, unlocked)
    assert not remote.proof
    status, _ = await complete(client, url(ours.decode), headers=shows(OURS), kv_transfer_params=remote.to_params())
    assert status == 200
    assert len(unlocked.prefill.pins) == 0


def _say(kind: str, nonce: bytes, remote: RemoteKV) -> bytes:
    """What a stranger may try."""
    pull = Pull(remote.transfer_id, remote.engine_id, remote.block_ids, remote.block_tokens)
    mine, right = Tokens((THEIRS,)), Tokens((OURS,))
    return {
        "pull": encode_frame(pull),
        "renew": encode_frame(Renew(remote.transfer_id)),
        "ack": encode_frame(Ack(remote.transfer_id)),
        "another token": encode_frame(Proof(remote.engine_id, mine.prove(nonce, engine_id=remote.engine_id))),
        "an old proof": encode_frame(Proof(remote.engine_id, right.prove(b"n" * 32, engine_id=remote.engine_id))),
        "another engine's proof": encode_frame(Proof(remote.engine_id, right.prove(nonce, engine_id="other"))),
        "no bytes": encode_frame(Proof(remote.engine_id, "mac")),  # type: ignore[arg-type]
        "the challenge": encode_frame(Challenge(nonce)),
        "a long frame": (STRANGER_FRAME_BYTES + 1).to_bytes(4, "big") + b"x" * 100,
        "nonsense": b"\0\0\0\1\xc1",
    }[kind] + encode_frame(pull)


@pytest.mark.parametrize(
    "kind",
    [
        "pull",
        "renew",
        "ack",
        "another token",
        "an old proof",
        "another engine's proof",
        "no bytes",
        "the challenge",
        "a long frame",
        "nonsense",
    ],
)
async def test_the_kv_port_tells_a_stranger_nothing(tenant: Begin, client: aiohttp.ClientSession, kind: str) -> None:
    ours = await tenant("ours", OURS)
    remote = await prefilled(client, ours)
    reader, writer = await asyncio.open_connection(remote.host, remote.port)
    frames = FrameReader()
    challenge, *_ = frames.feed(await reader.read(1000))
    assert isinstance(challenge, Challenge)
    writer.write(_say(kind, challenge.nonce, remote))
    heard = frames.feed(await reader.read())
    assert len(heard) <= 1
    for frame in heard:
        assert isinstance(frame, Refused)
        assert frame.reason == "unauthorised"
        assert remote.engine_id not in frame.message
    assert len(ours.prefill.pins) == 1
    writer.close()


async def test_each_connection_has_a_nonce_of_its_own_and_silence_ends_it(
    tenant: Begin, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PROOF_SECONDS", 0.05)
    ours = await tenant("ours", OURS)
    nonces = set()
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", ours.prefill.pulls.port)
        (challenge,) = FrameReader().feed(await reader.read())
        assert isinstance(challenge, Challenge)
        nonces.add(challenge.nonce)
        writer.close()
    assert len(nonces) == 3
    assert ours.prefill.strangers.count == 3


async def test_a_router_with_another_token_gets_no_worker(
    tenant: Begin, client: aiohttp.ClientSession, tools: Any
) -> None:
    ours = await tenant("ours", OURS)
    assert (await complete(client, ours.router.url))[0] == 200
    ours.write("router", THEIRS)
    await tools.eventually(lambda: not ours.router.fleet.servable_models)
    ours.write("router", OURS)
    await tools.eventually(lambda: bool(ours.router.fleet.servable_models))
    assert (await complete(client, ours.router.url))[0] == 200


async def test_a_client_is_not_blamed_for_the_routers_token(tenant: Begin, client: aiohttp.ClientSession) -> None:
    ours = await tenant("ours", OURS)
    assert (await complete(client, ours.router.url))[0] == 200
    for name in ("prefill", "decode"):
        ours.write(name, THEIRS)
    statuses = set()
    async with asyncio.timeout(60):
        while True:
            status, document = await complete(client, ours.router.url)
            statuses.add(status)
            if status != 200:
                break
    assert status in (502, 503)
    assert document["error"]["type"] != "authentication_error"


async def test_rotation_under_load_fails_no_request_whoever_sees_a_step_first(
    tenant: Begin, client: aiohttp.ClientSession, tools: Any
) -> None:
    """The three steps of a rotation reach the programs in any order, and each of them late."""
    ours = await tenant("ours", OURS)
    statuses: list[int] = []
    ended = asyncio.Event()

    async def load() -> None:
        while not ended.is_set():
            statuses.append((await complete(client, ours.router.url, max_tokens=4))[0])

    assert (await complete(client, ours.router.url))[0] == 200
    clients = [asyncio.create_task(load()) for _ in range(4)]
    rng = random.Random(7)
    for step in ((OURS, NEXT), (NEXT, OURS), (NEXT,)):
        for name in rng.sample(sorted(ours.files), k=3):
            ours.write(name, *step)
            seen = len(statuses)
            await tools.eventually(lambda seen=seen: len(statuses) >= seen + 8)
        # The next step comes when everybody has had the time to see this one.
        await asyncio.sleep(1.1 * REREAD_SECONDS)
        seen = len(statuses)
        await tools.eventually(lambda seen=seen: len(statuses) >= seen + 8)
    ended.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert ours.prefill.strangers.count == ours.decode.strangers.count == 0
    async with client.get(url(ours.decode) + ports.INFO_PATH, headers=shows(OURS)) as answer:
        assert answer.status == 401, "the old token is worth nothing any more"


async def test_no_token_is_in_any_log(
    tenant: Begin, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ours, theirs = await tenant("ours", OURS), await tenant("theirs", THEIRS)
    assert (await complete(client, ours.router.url))[0] == 200
    remote = await prefilled(client, ours)
    await complete(client, url(theirs.decode), headers=shows(OURS), kv_transfer_params=remote.to_params())
    await complete(client, url(theirs.decode), headers=shows(THEIRS), kv_transfer_params=remote.to_params())
    assert "not of this deployment" in caplog.text
    assert not any(token in caplog.text for token in (OURS, THEIRS))


async def test_without_a_token_everything_is_open_and_the_log_says_so_once(
    tenant: Begin, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    unlocked = await tenant("open")
    for _ in range(3):
        assert (await complete(client, unlocked.router.url))[0] == 200
    said = [record.getMessage() for record in caplog.records if "no --token-file" in record.getMessage()]
    assert len(said) == 3, "one of each program"
    async with client.get(url(unlocked.decode) + ports.INFO_PATH) as answer:
        assert answer.status == 200


def test_a_program_that_is_to_have_a_token_never_runs_open(tmp_path: Any) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match="missing"):
        Worker(WorkerConfig(token_file=missing))
    with pytest.raises(ConfigError, match="missing"):
        RouterApp(RouterConfig(token_file=missing, discovery_file="x"), source=None)  # type: ignore[arg-type]


def test_strangers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = itertools.chain([0.0] * 1000, [SILENCE_SECONDS])
    strangers = Strangers(monotonic=lambda: next(clock))
    for _ in range(1001):
        strangers.turned_away("10.0.0.9", "GET '/'")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "999 more" in lines[1]
