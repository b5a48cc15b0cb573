"""The Secret with a deployment's token, before a real API server."""

import base64
import json
import time

from disagg_contract.labels import ROTATE_TOKEN
from disagg_contract.tokens import TOKEN_FILE_KEY, Tokens
from tests.integration.operator.conftest import World
from tests.support.kube import Object

SECRET = "chat-token"
STEP_SECONDS = 2.0


def tokens(world: World) -> tuple[str, ...]:
    """What a pod would read now; nothing while there is no Secret."""
    secret: Object | None = world.kube.get("secret", SECRET)
    if secret is None:
        return ()
    return Tokens.parse(base64.b64decode(secret["data"][TOKEN_FILE_KEY]), name=SECRET).values


def begin(world: World) -> tuple[str, ...]:
    world.nodes.add("a", "left")
    world.operator(token_step_seconds=STEP_SECONDS, resync_seconds=2.0)
    world.kube.apply(world.deployment())
    world.make_ready()
    return tokens(world)


def test_the_token_is_made_kept_and_shown_nowhere(world: World) -> None:
    (first,) = begin(world)
    assert len(first) >= 43
    secret = world.kube.get("secret", SECRET)
    assert secret is not None
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("DisaggDeployment", "chat")
    version = secret["metadata"]["resourceVersion"]
    world.kube("annotate", "dd", "chat", "note=changed")
    time.sleep(3 * STEP_SECONDS)
    assert (world.kube.get("secret", SECRET) or {})["metadata"]["resourceVersion"] == version, "kept as it was"
    world.operators[0].stop()
    world.operator(token_step_seconds=STEP_SECONDS, resync_seconds=2.0)
    time.sleep(2 * STEP_SECONDS)
    assert tokens(world) == (first,), "a restarted operator keeps it as well"
    kinds = "dd,dg,pods,deployments,services,roles,events"
    assert first not in json.dumps(json.loads(world.kube("get", kinds, "-o", "json")))


def test_a_deleted_secret_comes_back_with_another_token(world: World) -> None:
    first = begin(world)
    world.kube("delete", "secret", SECRET)
    world.until(lambda: tokens(world), "the Secret is back")
    assert not set(tokens(world)) & set(first)
    assert "TokenCreated" in world.event_reasons()


def test_an_annotation_rotates_the_token_in_three_steps(world: World) -> None:
    (old,) = begin(world)
    uids = {pod["metadata"]["uid"] for pod in world.pods()}
    world.kube("annotate", "dd", "chat", f"{ROTATE_TOKEN}=once")
    seen: list[tuple[str, ...]] = [(old,)]

    def over() -> bool:
        now = tokens(world)
        if now != seen[-1]:
            seen.append(now)
        return len(now) == 1 and now != (old,)

    world.until(over, "the rotation is over", seconds=30)
    new = seen[-1][0]
    assert seen == [(old,), (old, new), (new, old), (new,)]
    time.sleep(2 * STEP_SECONDS)
    assert tokens(world) == (new,), "the same request is answered once"
    assert {pod["metadata"]["uid"] for pod in world.pods()} == uids, "no pod was replaced"
    world.until(lambda: "TokenRotated" in world.event_reasons(), "people are told")
    world.kube("annotate", "dd", "chat", f"{ROTATE_TOKEN}=again", "--overwrite")
    world.until(lambda: len(tokens(world)) == 1 and tokens(world) != (new,), "it is rotated again", seconds=30)


def test_a_secret_of_somebody_else_is_left_alone(world: World) -> None:
    world.nodes.add("a", "left")
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "stringData": {"password": "mine"},
    }
    world.kube.apply(foreign)
    try:
        world.operator(token_step_seconds=STEP_SECONDS)
        world.kube.apply(world.deployment())
        world.until(lambda: "not made by this operator" in json.dumps(world.status()), "the deployment says why")
        secret = world.kube.get("secret", SECRET)
        assert secret is not None
        assert set(secret["data"]) == {"password"}
        assert "ownerReferences" not in secret["metadata"]
    finally:
        world.kube("delete", "secret", SECRET)
    world.make_ready()
