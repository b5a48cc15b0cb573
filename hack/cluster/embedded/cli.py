"""The command line of the embedded cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from embedded import binaries, lifecycle, preflight, status
from embedded.errors import ClusterError
from embedded.images import project
from embedded.images.load import load_archive, load_image
from embedded.names import names_for
from embedded.settings import Settings, default_cache, default_state
from embedded.shell import say

_EXAMPLES = """\
examples:
  cluster.py up                                  two nodes, 4 GPUs each, one NVLink domain each
  cluster.py up --gpus 8,4 --nodes 3             8 GPUs on node-1, 4 on the others
  cluster.py up --topology a,a,b --nodes 3       name each node's NVLink domain
  cluster.py up --topology one-node              one node, as minikube has
  cluster.py up --kwok 1000                      and 1000 nodes that only seem to run
  eval "$(cluster.py kubeconfig --export)"       use it: sets KUBECONFIG and PATH
  cluster.py images                              build base, disagg and Prometheus images, put them in
  cluster.py load-image disagg.tar disagg:dev    put an archive of your own in
  cluster.py up --state /var/tmp/second          another cluster beside the first
  cluster.py down                                remove every trace

The first `up` compiles Kubernetes (about 15 minutes on two cores); what it built is kept in
$DISAGG_CACHE (~/.cache/disagg) and later starts take half a minute.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 failed, 2 wrong usage, 3 `status` of an unhealthy cluster."""
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    parsed = _parser().parse_args(arguments)
    try:
        exit_status: int = parsed.run(parsed)
    except ClusterError as error:
        print(f"cluster.py {parsed.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has seen enough (`status | head`): let nothing more be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"cluster.py {parsed.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command again goes on from here", file=sys.stderr)
        return 130
    return exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster.py",
        description="A real Kubernetes in one network namespace, for tests: no Docker, no download but Go modules.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--state", type=Path, default=default_state(), metavar="DIR", help="state folder (default: %(default)s)"
    )
    common.add_argument(
        "--no-install",
        action="store_true",
        default=bool(os.environ.get(preflight.FORBID_INSTALL)),
        help=f"never install Debian packages (also: {preflight.FORBID_INSTALL}=1)",
    )
    up = commands.add_parser("up", parents=[common], help="start, repair or reshape the cluster")
    up.set_defaults(run=_up)
    shape = up.add_argument_group("shape", "what is not given stays as it was, or is the default")
    default = Settings()
    shape.add_argument("--nodes", type=int, metavar="N", help=f"real nodes ({default.nodes})")
    shape.add_argument("--gpus", metavar="N[,N…]", help=f"GPUs of every node, or of each ({default.gpus})")
    shape.add_argument(
        "--topology",
        metavar="NAME",
        help=f"two-domains, one-domain, one-node, or a domain a node: a,a,b ({default.topology})",
    )
    shape.add_argument("--kwok", type=int, metavar="N", help=f"nodes that only seem to run ({default.kwok})")
    shape.add_argument("--kwok-gpus", type=int, metavar="N", help=f"GPUs of each of those ({default.kwok_gpus})")
    shape.add_argument(
        "--kwok-domain-size",
        type=int,
        metavar="N",
        help=f"how many of them share an NVLink domain ({default.kwok_domain_size})",
    )
    down = commands.add_parser("down", parents=[common], help="remove every trace of the cluster")
    down.add_argument("--keep-logs", action="store_true", help="leave the folder logs/ in the state folder")
    down.set_defaults(run=_down)
    show = commands.add_parser("status", parents=[common], help="show components, nodes, addresses, memory, logs")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=_status)
    kubeconfig = commands.add_parser("kubeconfig", parents=[common], help="print the path of the kubeconfig")
    kubeconfig.add_argument("--export", action="store_true", help="print shell commands that set KUBECONFIG and PATH")
    kubeconfig.set_defaults(run=_kubeconfig)
    build = commands.add_parser("build", help="compile programs ahead of time and print where they are")
    build.add_argument(
        "modules", nargs="*", metavar="MODULE", help=f"any of {', '.join(binaries.MODULES)} (default: all)"
    )
    build.set_defaults(run=_build)
    images = commands.add_parser("images", parents=[common], help="build images; put them in when a cluster is up")
    images.add_argument("images", nargs="*", metavar="IMAGE", help=f"any of {', '.join(project.KINDS)} (default: all)")
    images.add_argument("--tag", default=project.DEFAULT_TAG, help="name of the disagg image (default: %(default)s)")
    images.add_argument("--build-only", action="store_true", help="don't put them into a cluster")
    images.set_defaults(run=_images)
    load = commands.add_parser(
        "load-image", parents=[common], help="put an image archive (docker or OCI) into every node"
    )
    load.add_argument("archive", type=Path, help="the archive")
    load.add_argument("image", help="name of the image in it, e.g. disagg:dev")
    load.set_defaults(run=_load)
    return parser


def _up(parsed: argparse.Namespace) -> int:
    cache = default_cache()
    preflight.require("cluster", cache=cache, may_install=not parsed.no_install)
    cluster = lifecycle.up(parsed.state.absolute(), cache=cache, options=vars(parsed))
    say(f"up: {len(cluster.processes())} processes, state in {cluster.state}; use it with")
    print(_exports(cluster.kubeconfig, cluster.state / "bin"))
    return 0


def _down(parsed: argparse.Namespace) -> int:
    state = parsed.state.absolute()
    removed = lifecycle.down(state, keep_logs=parsed.keep_logs)
    say(f"down: removed the cluster of {state}" if removed else f"there is no cluster in {state}")
    return 0


def _status(parsed: argparse.Namespace) -> int:
    report = status.collect(*lifecycle.existing_cluster(parsed.state.absolute(), cache=default_cache()))
    print(json.dumps(report, indent=2) if parsed.json else status.render(report))
    return 0 if report["healthy"] else 3


def _kubeconfig(parsed: argparse.Namespace) -> int:
    cluster, _ = lifecycle.existing_cluster(parsed.state.absolute(), cache=default_cache())
    print(_exports(cluster.kubeconfig, cluster.state / "bin") if parsed.export else cluster.kubeconfig)
    return 0


def _build(parsed: argparse.Namespace) -> int:
    cache = default_cache()
    preflight.require("build", cache=cache, may_install=False)
    unknown = [name for name in parsed.modules if name not in binaries.MODULES]
    if unknown:
        print(
            f"cluster.py build: unknown {', '.join(unknown)}; there are {', '.join(binaries.MODULES)}", file=sys.stderr
        )
        return 2
    for name in parsed.modules or binaries.MODULES:
        print(binaries.built(binaries.MODULES[name], cache=cache))
    return 0


def _images(parsed: argparse.Namespace) -> int:
    cache, state = default_cache(), parsed.state.absolute()
    preflight.require("images", cache=cache, may_install=not parsed.no_install)
    built = project.build_all(parsed.images or list(project.KINDS), cache=cache, tag=parsed.tag)
    if not parsed.build_only:
        cluster, settings = lifecycle.existing_cluster(state, cache=cache)
        for image in built:
            load_image(cluster, settings.real_nodes(), image)
    for image in built:
        print(f"{image.name}@{image.digest}")
    return 0


def _load(parsed: argparse.Namespace) -> int:
    names_for(parsed.state.absolute())
    cluster, settings = lifecycle.existing_cluster(parsed.state.absolute(), cache=default_cache())
    changed = load_archive(cluster, settings.real_nodes(), parsed.archive, image=parsed.image)
    say("loaded" if changed else "every node has it already")
    return 0


def _exports(kubeconfig: Path, programs: Path) -> str:
    return f'export KUBECONFIG={kubeconfig}\nexport PATH={programs}:"$PATH"'
