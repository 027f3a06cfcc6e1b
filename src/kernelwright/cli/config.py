"""The settings of a verb: flags over `kernelwright.toml` of the working folder over defaults."""

from collections.abc import Mapping
from pathlib import Path

from kernelwright.core.config import RunConfig, parse_toml, resolve


def load_config(flags: Mapping[str, object], folder: Path | None = None) -> RunConfig:
    """Return the resolved settings; the file is that of a folder, by default of the working one."""
    from kernelwright.store.locate import config_file

    path = config_file(folder or Path.cwd())
    where = str(path) if path else "defaults"
    values = parse_toml(_text(path), where) if path else {}
    return resolve(flags, values, where)


def _text(path: Path) -> str:
    from kernelwright.core.errors import BadConfig

    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadConfig(str(path), f"not UTF-8: {error.reason}", "Save it as UTF-8.") from error
