"""The settings: from keyword arguments, then the environment, then ``[tool.deviceguard]`` in pyproject.toml."""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from deviceguard.errors import SettingsError
from deviceguard.rules.registry import expand

POLICIES = ("off", "warn", "strict", "migrate")
PREFIX = "DEVICEGUARD"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Everything a person can set. Field names are the keyword arguments and the keys in pyproject.toml.

    Attributes:
        policy: ``warn``, ``strict``, ``migrate``, or ``off``.
        select: codes or families that are on; default all.
        ignore: codes or families that are off.
        simulate: device to simulate (``cuda``, ``cuda:2``), or None.
        json: file for the JSON report, or None.
        warmup_steps: steps at the start in which host reads are not judged.
        sync_share: a line that reads from the device in at least this share of the steps is reported; between 0 and 1.
        min_steps: least number of steps after which a share can be judged.
        full_steps: steps at the start that are examined in full.
        sample_period: afterwards one step in this many is examined in full.
    """

    policy: str = "warn"
    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    simulate: str | None = None
    json: str | None = None
    warmup_steps: int = 2
    sync_share: float = 0.8
    min_steps: int = 4
    full_steps: int = 10
    sample_period: int = 100

    def codes(self) -> set[str]:
        """The rule codes that are on."""
        return expand(self.select) - expand(self.ignore)


_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def load(given: Mapping[str, Any], environment: Mapping[str, str] | None = None, start: str | None = None) -> Settings:
    """The settings in force.

    Args:
        given: keyword arguments; None values count as not given.
        environment: environment variables, ``os.environ`` by default.
        start: folder from which pyproject.toml is searched upwards; the current one by default.

    Raises:
        SettingsError: an unknown name, rule code or value, with the place it stands in and the closest match.
    """
    environment = os.environ if environment is None else environment
    merged: dict[str, Any] = {}
    for place, values in (
        (*_from_pyproject(start),),
        ("the environment", _from_environment(environment)),
        ("the arguments", {name: value for name, value in given.items() if value is not None}),
    ):
        for name, value in values.items():
            field = _known(name, place)
            merged[field] = _checked(field, value, place)
    settings = Settings(**merged)
    settings.codes()
    return settings


def _known(name: str, place: str) -> str:
    plain = name.replace("-", "_")
    if plain in _FIELDS:
        return plain
    close = difflib.get_close_matches(plain, _FIELDS, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else f" Known are {', '.join(sorted(_FIELDS))}."
    raise SettingsError(f"Unknown setting {name!r} in {place}.{hint}")


def _checked(name: str, value: Any, place: str) -> Any:
    kind = _FIELDS[name].type
    try:
        if kind.startswith("tuple"):
            return _codes(value)
        if kind == "int":
            return _number(int(value), 0)
        if kind == "float":
            return _number(float(value), 0.0, 1.0)
    except (TypeError, ValueError) as problem:
        if isinstance(problem, SettingsError):
            raise
        raise SettingsError(f"Setting {name!r} in {place} cannot be {value!r}.") from None
    if name == "policy":
        return _policy(value, place)
    if not isinstance(value, str | os.PathLike):
        raise SettingsError(f"Setting {name!r} in {place} cannot be {value!r}; it takes text.")
    return str(value)


def _number(value: Any, low: Any, high: Any = None) -> Any:
    if value < low or (high is not None and value > high):
        raise ValueError
    return value


def _policy(value: Any, place: str) -> str:
    if value in POLICIES:
        return str(value)
    close = difflib.get_close_matches(str(value), POLICIES, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(f"Policy {value!r} in {place} is not one of {', '.join(POLICIES)}.{hint}")


def _codes(value: str | Iterable[str]) -> tuple[str, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else [str(part) for part in value]
    expand(parts)
    return tuple(part.strip().upper() for part in parts)


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in environment.items():
        if key == PREFIX and value:
            values["policy"] = value
        elif key.startswith(PREFIX + "_") and value and key not in (PREFIX + "_DEBUG", PREFIX + "_SIMULATE"):
            values[key[len(PREFIX) + 1 :].lower()] = value
    return values


def _from_pyproject(start: str | None) -> tuple[str, dict[str, Any]]:
    folder = pathlib.Path(start or pathlib.Path.cwd()).resolve()
    for candidate in (folder, *folder.parents):
        path = candidate / "pyproject.toml"
        if path.is_file():
            return str(path), dict(_read_toml(path).get("tool", {}).get("deviceguard", {}))
    return "pyproject.toml", {}


def _read_toml(path: pathlib.Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with path.open("rb") as file:
            return dict(tomllib.load(file))
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise SettingsError(f"{path} cannot be read: {problem}") from None
