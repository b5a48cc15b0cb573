"""Write the CRDs, or check that the written ones are up to date: `python -m disagg_crds.generate --check|--write`.

The files beside the package are what people apply by hand; the chart's copies are the same documents with two switches
around them (`crds.install`, `crds.keep`), templated so that `helm upgrade` upgrades them. `--print` writes the plain
documents to standard output and needs no source tree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any, Final

import yaml

from .crd import KINDS, Kind, build_crd

_HEADER: Final = "# Generated from crds/disagg_crds by `python -m disagg_crds.generate --write`; do not edit.\n"
_ANNOTATIONS: Final = "ANNOTATIONS"
_KEEP: Final = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def crd_text(kind: Kind, *, version: str) -> str:
    """The CRD as YAML."""
    return _HEADER + _dump(build_crd(kind, version=version))


def chart_text(kind: Kind, *, version: str) -> str:
    """The CRD as a template of the chart."""
    crd = build_crd(kind, version=version)
    crd["metadata"]["annotations"] = _ANNOTATIONS
    body = _dump(crd)
    if "{{" in body:
        raise ValueError(f"{kind.crd_name} holds template delimiters, which the chart would expand")
    body = body.replace(f"  annotations: {_ANNOTATIONS}\n", _KEEP)
    return f"{_HEADER}{{{{- if .Values.crds.install }}}}\n{body}{{{{- end }}}}\n"


def generated_files(*, version: str) -> Mapping[str, str]:
    """Path below the repository root → content, of every generated file."""
    files: dict[str, str] = {}
    for kind in KINDS:
        files[f"crds/{kind.file_name}"] = crd_text(kind, version=version)
        files[f"charts/disagg/templates/crds/{kind.file_name}"] = chart_text(kind, version=version)
    return files


def stale_files(root: Path, *, version: str) -> list[str]:
    """Generated files that are missing below `root` or differ from what the models say."""
    return [path for path, text in generated_files(version=version).items() if _read(root / path) != text]


def main(argv: list[str] | None = None) -> int:
    """0 when all is well, 1 when `--check` found a stale file."""
    parser = argparse.ArgumentParser(prog="python -m disagg_crds.generate", description="Write or check the CRDs.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="exit 1 when a generated file is out of date")
    action.add_argument("--write", action="store_true", help="write the generated files")
    action.add_argument("--print", action="store_true", help="write the CRDs to standard output")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="repository root")
    arguments = parser.parse_args(argv)
    version = distribution_version("disagg")
    if arguments.print:
        sys.stdout.write("---\n".join(crd_text(kind, version=version) for kind in KINDS))
        return 0
    if arguments.write:
        for path, text in generated_files(version=version).items():
            target = arguments.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return 0
    stale = stale_files(arguments.root, version=version)
    for path in stale:
        sys.stderr.write(f"{path} is out of date; run: python -m disagg_crds.generate --write\n")
    return 1 if stale else 0


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
