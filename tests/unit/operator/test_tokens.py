"""The token of a deployment: its steps, its Secret, and that no manifest shows it."""

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from typing import Any, cast

import aiohttp
import pytest

from disagg_contract import labels
from disagg_contract.config import RouterConfig, WorkerConfig
from disagg_contract.settings import parse
from disagg_contract.tokens import TOKEN_FILE_KEY, Tokens
from disagg_crds import DisaggDeployment, DisaggGroup, Role
from disagg_operator.core.tokens import Stage, TokenRules, TokenState, advance, due_seconds
from disagg_operator.errors import ApiError, Conflict
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_operator.render.planners import planner_objects
from disagg_operator.render.services import router_objects
from disagg_operator.render.tokens import FOLDER, TOKEN_FILE, read_token_secret, token_secret, token_secret_name
from disagg_operator.shell.drain import cancel_drain, drain_state, start_drain
from disagg_operator.shell.kube.api import Api
from disagg_operator.shell.kube.resources import SECRETS
from disagg_operator.shell.kube.tokens import TokenSecrets, draw

Make = Callable[..., DisaggDeployment]
MakeGroup = Callable[..., DisaggGroup]
RULES = TokenRules(step_seconds=100.0)
A, B, C = ("a" * 43, "b" * 43, "c" * 43)
STEADY = TokenState(values=(A,), since=1000.0)


def step(
    state: TokenState | None, *, now: float, asked: str = "", fresh: str = B, rules: TokenRules = RULES
) -> TokenState:
    return advance(state, asked=asked, now=now, fresh=fresh, rules=rules)


def test_the_first_token_is_kept_for_ever() -> None:
    state = step(None, now=5.0, fresh=A)
    assert state == TokenState(values=(A,), since=5.0)
    assert step(state, now=1e9) is state
    assert due_seconds(state, asked="", now=1e9, rules=RULES) is None


def test_a_rotation_is_learnt_then_shown_then_over() -> None:
    learning = step(STEADY, now=2000.0, asked="1")
    assert (learning.values, learning.stage) == ((A, B), Stage.LEARNING)
    assert step(learning, now=2099.0, asked="1", fresh=C) is learning
    assert due_seconds(learning, asked="1", now=2040.0, rules=RULES) == 60.0
    showing = step(learning, now=2100.0, asked="1", fresh=C)
    assert (showing.values, showing.stage) == ((B, A), Stage.SHOWING)
    assert step(showing, now=2199.0, asked="1", fresh=C) is showing
    steady = step(showing, now=2200.0, asked="1", fresh=C)
    assert steady == TokenState(values=(B,), since=2200.0, asked="1")
    assert step(steady, now=1e9, asked="1") is steady


def test_neighbouring_steps_understand_each_other() -> None:
    """Whoever sees a step early or late is understood: what is shown in one is accepted in the next and the last."""
    states = [STEADY]
    for now in (2000.0, 2100.0, 2200.0):
        states.append(step(states[-1], now=now, asked="1"))
    for early, late in itertools.pairwise(states):
        assert Tokens(late.values).admit_bearer(Tokens(early.values).bearer)
        assert Tokens(early.values).admit_bearer(Tokens(late.values).bearer)


def test_a_request_is_answered_once_and_never_while_another_is_under_way() -> None:
    learning = step(STEADY, now=2000.0, asked="1")
    assert step(learning, now=2001.0, asked="2", fresh=C) is learning
    steady = step(step(learning, now=2100.0, asked="2", fresh=C), now=2200.0, asked="2", fresh=C)
    assert steady.asked == "1"
    assert due_seconds(steady, asked="2", now=2200.0, rules=RULES) == 0.0
    assert step(steady, now=2200.0, asked="2", fresh=C).values == (B, C)
    assert step(steady, now=2200.0, asked="") is steady


def test_age_replaces_a_token_where_it_is_bounded() -> None:
    rules = TokenRules(step_seconds=100.0, max_age_seconds=500.0)
    assert step(STEADY, now=1499.0, rules=rules) is STEADY
    assert step(STEADY, now=1500.0, rules=rules).stage is Stage.LEARNING
    assert step(STEADY, now=0.0, rules=rules) is STEADY, "a clock that went back"


@pytest.mark.parametrize("state", [STEADY, step(STEADY, now=2000.5, asked="x y")])
def test_a_secret_says_what_was_put_into_it(make_deployment: Make, state: TokenState) -> None:
    manifest = token_secret(make_deployment(), state, version="0.1.0")
    assert read_token_secret(manifest) == state
    assert manifest["metadata"]["name"] == "chat-token"
    assert manifest["metadata"]["ownerReferences"][0]["controller"]
    notes = json.dumps(manifest["metadata"])
    assert not any(value in notes for value in state.values)


@pytest.mark.parametrize("data", [None, {}, {TOKEN_FILE_KEY: "***"}, {TOKEN_FILE_KEY: base64.b64encode(b"x").decode()}])
def test_a_secret_without_tokens_says_nothing(data: dict[str, str] | None) -> None:
    assert read_token_secret({"metadata": {"name": "chat-token"}, "data": data}) is None


def test_a_secret_whose_notes_are_gone_keeps_its_tokens() -> None:
    data = {TOKEN_FILE_KEY: base64.b64encode(f"{A}\n{B}\n".encode()).decode()}
    notes = {"disagg.dev/token-stage": "later", "disagg.dev/token-since": "nan"}
    assert read_token_secret({"metadata": {"annotations": notes}, "data": data}) == TokenState(values=(A, B))


def test_tokens_are_random_and_valid() -> None:
    drawn = {draw() for _ in range(100)}
    assert len(drawn) == 100
    assert all(Tokens.parse(value.encode(), name="f").values == (value,) for value in drawn)


def manifests(make: Make, make_group: MakeGroup, **spec: Any) -> list[dict[str, Any]]:
    around = Surroundings(image="disagg:1", prometheus_url="http://p")
    new = NewInstance(name="chat-prefill-a", role=Role.PREFILL, gang="chat")
    deployment = make(**spec)
    return [
        pod(deployment, make_group(), new, around=around),
        *router_objects(deployment, around=around),
        *planner_objects(deployment, around=around),
    ]


def test_programs_get_the_token_as_a_file_and_nothing_else(make_deployment: Make, make_group: MakeGroup) -> None:
    seen = 0
    for manifest in manifests(make_deployment, make_group):
        spec = (
            manifest["spec"] if manifest["kind"] == "Pod" else manifest.get("spec", {}).get("template", {}).get("spec")
        )
        if spec is None:
            continue
        (container,) = spec["containers"]
        assert "secretKeyRef" not in json.dumps(container)
        assert "envFrom" not in container
        mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"] == FOLDER]
        if container["name"] == "planner":
            assert mounts == [], "it reads metrics, which are open"
            continue
        seen += 1
        kind = {"worker": WorkerConfig, "router": RouterConfig}[container["name"]]
        values = {item["name"]: item.get("value", "") for item in container["env"]}
        assert parse(kind, container["args"], values).token_file == TOKEN_FILE
        assert all(mount["readOnly"] for mount in mounts)
        (volume,) = [item for item in spec["volumes"] if item["name"] == mounts[0]["name"]]
        assert volume["secret"]["secretName"] == token_secret_name("chat")
        assert not volume["secret"].get("optional"), "no program begins without"
    assert seen == 2


def test_probes_ask_only_for_pages_that_need_no_token(make_deployment: Make, make_group: MakeGroup) -> None:
    worker = manifests(make_deployment, make_group)[0]["spec"]["containers"][0]
    probes = [worker[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert set(probes) <= {"/health", "/metrics"}


class Secrets:
    """An API server that knows Secrets alone."""

    def __init__(self) -> None:
        self.live: dict[str, Any] | None = None
        self.writes = 0

    async def find(self, resource: Any, name: str, *, namespace: str = "") -> dict[str, Any] | None:
        assert (resource, name, namespace) == (SECRETS, "chat-token", "team")
        return self.live

    async def apply(self, resource: Any, body: dict[str, Any], *, namespace: str = "") -> dict[str, Any]:
        self.writes += 1
        self.live = body
        return body


def test_the_secret_is_made_once_kept_and_made_anew_when_it_is_gone(make_deployment: Make) -> None:
    server, now = Secrets(), [1000.0]
    keeper = TokenSecrets(cast(Api, server), rules=RULES, version="1", clock=lambda: now[0])

    async def keep() -> Any:
        return await keeper.keep(make_deployment())

    first = asyncio.run(keep())
    assert [note.reason for note in first.notes] == ["TokenCreated"]
    now[0] += 1e6
    again = asyncio.run(keep())
    assert (again.tokens, again.notes, again.again_seconds, server.writes) == (first.tokens, (), None, 1)
    server.live = None
    anew = asyncio.run(keep())
    assert anew.tokens != first.tokens
    assert all(value not in note.message for note in (*first.notes, *anew.notes) for value in anew.tokens.values)


@pytest.mark.parametrize(
    ("owner", "own", "error"),
    [
        ([], {}, ApiError),
        ([], {labels.MANAGED_BY: "Helm", labels.DEPLOYMENT: "chat"}, ApiError),
        ([{"controller": True, "uid": "o", "kind": "Other", "name": "o"}], {}, ApiError),
        ([{"controller": True, "uid": "o", "kind": "DisaggDeployment", "name": "chat"}], {}, Conflict),
    ],
)
def test_a_secret_of_somebody_else_is_left_alone(
    make_deployment: Make, owner: list[dict[str, Any]], own: dict[str, str], error: type[Exception]
) -> None:
    server = Secrets()
    server.live = {"metadata": {"name": "chat-token", "labels": own, "ownerReferences": owner}, "data": {"x": "eA=="}}
    keeper = TokenSecrets(cast(Api, server), rules=RULES, version="1", clock=lambda: 0.0)

    async def keep() -> Any:
        return await keeper.keep(make_deployment())

    with pytest.raises(error, match="chat-token"):
        asyncio.run(keep())
    assert server.writes == 0


class Deaf:
    """A session that notes what it was to send, and fails."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    def request(self, method: str, url: str, *, headers: dict[str, str], timeout: Any) -> Any:
        self.headers.append(headers)
        raise aiohttp.ClientConnectionError

    def get(self, url: str, **rest: Any) -> Any:
        return self.request("GET", url, **rest)


@pytest.mark.parametrize(("tokens", "shown"), [(None, {}), (Tokens((A, B)), {"authorization": f"Bearer {A}"})])
def test_drains_show_the_token(tokens: Tokens | None, shown: dict[str, str]) -> None:
    deaf = Deaf()
    session = cast(aiohttp.ClientSession, deaf)

    async def ask() -> None:
        assert not await start_drain(session, "http://w", tokens=tokens)
        assert not await cancel_drain(session, "http://w", tokens=tokens)
        assert await drain_state(session, "http://w", tokens=tokens) is None

    asyncio.run(ask())
    assert deaf.headers == [shown] * 3
