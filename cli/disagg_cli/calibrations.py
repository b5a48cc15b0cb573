"""Calibrated constants from the file that `disagg calibrate` has written."""

from __future__ import annotations

from pathlib import Path

import yaml

from disagg_engine.errors import CatalogueError
from disagg_engine.timemodel.calibration import Calibration, read_calibration

from .errors import UsageError


def load_calibration(path: str) -> Calibration:
    """The calibration in a YAML or JSON file. Raises `UsageError`."""
    try:
        return read_calibration(yaml.safe_load(Path(path).read_text(encoding="utf-8")), what=path)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}".replace("\n", " ")) from None
    except CatalogueError as error:
        raise UsageError(str(error)) from None
