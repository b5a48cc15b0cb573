"""The control API over a board; see ``disagg_contract.control`` for the documents."""

import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from disagg_contract.control import EVENTS_PATH, STATUS_PATH, Condition, Event, RuntimeStatus, Scale
from disagg_contract.errors import DocumentError
from disagg_contract.labels import Role
from disagg_operator.errors import Conflict, NotFound
from disagg_operator.shell.local.board import Board

MOST_REPLICAS = 1024


def control_app(board: Board, *, status: Callable[[], RuntimeStatus], changed: Callable[[], None]) -> web.Application:
    """The application. ``changed`` is called after a write, so that it is acted on at once."""

    async def get_status(request: web.Request) -> web.Response:
        return _json(status().to_json())

    async def get_scale(request: web.Request) -> web.Response:
        return _json(board.scale(_role(request)).to_json())

    async def put_scale(request: web.Request) -> web.Response:
        role = _role(request)
        wanted = Scale.from_json(await request.text())
        if wanted.role is not role:
            raise DocumentError(f"scale: role is {wanted.role.value}, the path says {role.value}")
        if not 0 <= wanted.replicas <= MOST_REPLICAS:
            raise DocumentError(f"scale: replicas is {wanted.replicas}; use 0 to {MOST_REPLICAS}")
        scale = board.rescale(role, replicas=wanted.replicas, resource_version=wanted.resource_version)
        changed()
        return _json(scale.to_json())

    async def put_condition(request: web.Request) -> web.Response:
        condition = Condition.from_json(await request.text())
        if condition.type != request.match_info["type"]:
            raise DocumentError(f"condition: type is {condition.type}, the path says {request.match_info['type']}")
        board.put_condition(condition)
        return web.Response(status=204)

    async def post_event(request: web.Request) -> web.Response:
        event = Event.from_json(await request.text())
        board.record(event.type, event.reason, event.message)
        return web.Response(status=204)

    app = web.Application(middlewares=[_errors])
    app.router.add_get(STATUS_PATH, get_status)
    app.router.add_get("/v1/groups/{role}/scale", get_scale)
    app.router.add_put("/v1/groups/{role}/scale", put_scale)
    app.router.add_put("/v1/conditions/{type}", put_condition)
    app.router.add_post(EVENTS_PATH, post_event)
    return app


def _role(request: web.Request) -> Role:
    text = request.match_info["role"]
    try:
        return Role(text)
    except ValueError:
        known = ", ".join(role.value for role in Role)
        raise NotFound(f"role {text!r} is unknown; known are {known}", code=404) from None


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except (Conflict, NotFound) as error:
        return _refuse(error.code, str(error))
    except DocumentError as error:
        return _refuse(400, str(error))


def _refuse(code: int, message: str) -> web.Response:
    return web.Response(status=code, text=json.dumps({"message": message}), content_type="application/json")
