"""`disagg crds`: the custom resource definitions, as YAML for `kubectl apply`."""

from __future__ import annotations

import argparse

from disagg_cli.parsing import Parser

DESCRIPTION = """\
Prints the definitions of DisaggDeployment and DisaggGroup. The Helm chart installs and upgrades them by itself; this is
for clusters where somebody else may create definitions, and for reading what a field means.
"""

EXAMPLES = ("disagg crds | kubectl apply --server-side -f -",)


def configure(parser: Parser, name: str) -> None:
    """There are no arguments."""


def run(arguments: argparse.Namespace, name: str) -> int:
    """Print them."""
    from disagg_contract import __version__
    from disagg_crds.crd import KINDS
    from disagg_crds.generate import crd_text

    print("---\n".join(crd_text(kind, version=__version__) for kind in KINDS), end="")
    return 0
