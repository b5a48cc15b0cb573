"""`disagg place`: where the GPU pods of a deployment would go, without a cluster at hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from disagg_cli.errors import UsageError
from disagg_cli.parsing import Parser
from disagg_contract import __version__
from disagg_crds import DisaggDeployment, SpecError, load_deployment
from disagg_operator.core.placement import Defragmentation, NoRoom
from disagg_operator.core.quantity import CPU, show
from disagg_operator.errors import ManifestError
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.rehearsal import Cluster, Rehearsal, read_cluster, rehearse

DESCRIPTION = """\
Says on which nodes the operator would put the GPU pods of a deployment, and why there; or what is missing, by how much,
and where it comes closest. Nothing is changed and no cluster is asked: nodes and pods come from a file that kubectl
wrote. What of the deployment has nodes already stays and counts. Exit status 1 when some pod would wait.
"""

EXAMPLES = (
    "kubectl get nodes,pods -A -o json > cluster.json",
    "disagg place --nodes cluster.json --deployment examples/chat-13b.yaml",
    "disagg place --nodes cluster.json --deployment examples/chat-13b.yaml --json | jq .assignments",
    "kubectl get nodes,pods,priorityclasses -A -o json | disagg place --nodes - --deployment big.yaml --moves",
)

_SHOWN = 40
"""Pods listed by name for a person."""


def configure(parser: Parser, name: str) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--nodes",
        required=True,
        metavar="FILE",
        help="nodes and pods as `kubectl get nodes,pods -A -o json` (or yaml, which is read more slowly) prints them; "
        "- reads them from the standard input. PriorityClasses in it count too",
    )
    parser.add_argument("--deployment", required=True, metavar="FILE", help="YAML file with one DisaggDeployment")
    parser.add_argument(
        "--moves", action="store_true", help="where it does not fit: moves of running instances that would make room"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON; amounts in base units")


def run(arguments: argparse.Namespace, name: str) -> int:
    """Print the placement; 0 when every pod has a node, 1 when some pod has none."""
    deployment = _deployment(arguments.deployment)
    cluster = _cluster(arguments.nodes)
    if not cluster.pods:
        print(f"disagg {name}: warning: {arguments.nodes} holds no pods: every node counts as empty", file=sys.stderr)
    found = rehearse(deployment, cluster, around=Surroundings(version=__version__), moves=arguments.moves)
    print(json.dumps(_document(deployment, found), indent=1) if arguments.json else _text(deployment, cluster, found))
    return 0 if found.placed else 1


def _deployment(path: str) -> DisaggDeployment:
    try:
        found = load_deployment(_read(path))
    except SpecError as error:
        raise UsageError(f"{path}: {error}") from None
    if len(found) != 1:
        names = ", ".join(deployment.name for deployment in found)
        raise UsageError(f"{path} holds {len(found)} deployments ({names}); put the one to place into a file")
    return found[0]


def _cluster(path: str) -> Cluster:
    text = _read(path)
    try:
        cluster = read_cluster(_documents(text))
    except ManifestError as error:
        raise UsageError(f"{path}: {error}") from None
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        first = str(error).splitlines()[0] if str(error) else "it cannot be read"
        raise UsageError(f"{path} is neither JSON nor YAML: {first}") from None
    if not cluster.nodes:
        raise UsageError(f"{path} holds no nodes; write it with: kubectl get nodes,pods -A -o json")
    return cluster


def _documents(text: str) -> list[object]:
    if text.lstrip().startswith("{"):
        return [json.loads(text)]
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return list(yaml.load_all(text, Loader=loader))


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from None


def _document(deployment: DisaggDeployment, found: Rehearsal) -> dict[str, Any]:
    document: dict[str, Any] = {
        "deployment": f"{deployment.namespace}/{deployment.name}",
        "placed": found.placed,
        "domain": found.domain,
        "level": found.level,
        "score": found.score,
        "assignments": dict(found.assignments),
        "waiting": list(found.waiting),
        "missing": {resource: _base(resource, value) for resource, value in found.missing.items()},
        "best_domain": found.best_domain,
        "reason": found.reason.value,
        "message": found.message,
        "evicted": list(found.victims),
        "search_bound_hit": found.bound_hit,
        "gangs": [
            {
                "pods": list(gang.pods),
                "base": gang.base,
                "placed": not isinstance(gang.outcome, NoRoom),
                "domain": None if isinstance(gang.outcome, NoRoom) else gang.outcome.domain.value,
                "message": gang.outcome.message,
            }
            for gang in found.gangs
        ],
    }
    if found.moves is not None:
        document["moves"] = {
            "enough": bool(found.moves.enough),
            "moves": [{"pod": move.name, "from": move.source, "to": move.target} for move in found.moves.moves],
        }
    return document


def _base(resource: str, value: int) -> int | float:
    """An amount in base units: cores, bytes, devices."""
    return value / 1000 if resource == CPU else value


def _text(deployment: DisaggDeployment, cluster: Cluster, found: Rehearsal) -> str:
    usable = sum(1 for node in cluster.nodes if node.schedulable)
    lines = [
        f"{deployment.namespace}/{deployment.name} on {len(cluster.nodes)} nodes ({usable} ready and not cordoned)",
        f"{_verdict(found)} ({found.reason.value})",
        f"  {found.message}",
    ]
    if found.score is not None:
        where = f" in {found.domain} ({found.level})" if found.domain else ""
        lines.append(f"  placement score {found.score:g} of 1{where}")
    if found.missing:
        amounts = ", ".join(f"{show(resource, value)} {resource}" for resource, value in found.missing.items())
        lines.append(f"  missing: {amounts}" + (f" in {found.best_domain}" if found.best_domain else ""))
    if found.victims:
        lines.append(f"  evicted for it, being of lower priority: {', '.join(found.victims)}")
    if found.moves is not None:
        lines += _moves(found.moves)
    if found.assignments:
        lines += ["", *_assignments(found)]
    if found.waiting:
        more = f" and {len(found.waiting) - _SHOWN} more" if len(found.waiting) > _SHOWN else ""
        lines += ["", f"waiting: {', '.join(found.waiting[:_SHOWN])}{more}"]
    return "\n".join(lines)


def _verdict(found: Rehearsal) -> str:
    if not found.placed and found.assignments:
        return f"placed in part: {len(found.waiting)} further pods would wait"
    if not found.placed:
        return "not placed"
    return "placed" if found.assignments else "nothing to place"


def _assignments(found: Rehearsal) -> list[str]:
    """Pod and node, one a line; only counts by node where they are many."""
    if len(found.assignments) <= _SHOWN:
        width = max(len(pod) for pod in found.assignments)
        return [f"  {pod:<{width}}  {node}" for pod, node in found.assignments.items()]
    count = Counter(found.assignments.values())
    width = max(len(node) for node in count)
    return [f"  {node:<{width}}  {number} pods" for node, number in sorted(count.items())]


def _moves(found: Defragmentation) -> list[str]:
    if not found.moves:
        return ["  no moves of running instances would make room"]
    return [
        "  these moves would make room:",
        *(f"    {move.name}: {move.source} -> {move.target}" for move in found.moves),
    ]
