"""The settings: from keyword arguments, then the environment, then ``[tool.deviceguard]`` in pyproject.toml."""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deviceguard.errors import SettingsError
from deviceguard.rules.registry import expand
from deviceguard.transfer_policy import DIRECTIONS, LEVELS

POLICIES = ("off", "warn", "strict", "migrate")
PREFIX = "DEVICEGUARD"
_VARIABLE = PREFIX + "_"
_SWITCHES = {"0": "off", "1": "warn"}
_NO_SETTINGS = (_VARIABLE + "DEBUG", _VARIABLE + "SIMULATE")
"""Variables with the prefix that others read: the simulation hands its device on to spawned processes in one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Everything a person can set. Field names are the keyword arguments and the keys in pyproject.toml.

    Attributes:
        policy: ``warn``, ``strict``, ``migrate``, or ``off``.
        select: codes or families that are on; default all.
        ignore: codes or families that are off.
        simulate: device to simulate (``cuda``, ``cuda:2``), or None.
        json: file for the JSON report, or None.
        json_lines: file that grows by a line of JSON for each finding while the run goes on, or None.
        logger: name of the logger that gets a record for each finding, or None.
        prometheus: file in Prometheus' text format, kept up to date, or None.
        telemetry: name of the OpenTelemetry meter that counts findings, or None.
        control: file with orders for the running guard (``off``, ``off SYN001``, ``policy warn``, ``report``), or None.
        fix_diff: file for the edits that repair what was found, as a unified diff, or None.
        warmup_steps: steps at the start in which host reads are not judged.
        sync_share: a line that reads from the device in at least this share of the steps is reported; between 0 and 1.
        min_steps: least number of steps after which a share can be judged.
        host_to_device: ``allow``, ``log`` or ``disallow`` for implicit uploads; with ``_explicit`` for all.
        device_to_host: the same for reads of values and copies to the host.
        device_to_device: the same for copies between devices.
        full_steps: steps at the start that are examined in full.
        capture_steps: steps at the start in which every torch call is looked at.
        sample_period: later ``warn`` looks at four steps in this many, then fewer; 1 (in ``run`` and tests) for all.
    """

    policy: str = "warn"
    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    simulate: str | None = None
    json: str | None = None
    json_lines: str | None = None
    logger: str | None = None
    prometheus: str | None = None
    telemetry: str | None = None
    control: str | None = None
    fix_diff: str | None = None
    warmup_steps: int = 2
    sync_share: float = 0.8
    min_steps: int = 4
    host_to_device: str = "allow"
    device_to_host: str = "allow"
    device_to_device: str = "allow"
    full_steps: int = 10
    capture_steps: int = 100
    sample_period: int = 100

    def codes(self) -> set[str]:
        """The rule codes that are on."""
        return expand(self.select) - expand(self.ignore)

    @property
    def watches_transfers(self) -> bool:
        """True where some transfers are to be recorded or forbidden, so that every step has to be looked at."""
        return any(getattr(self, direction) != "allow" for direction in DIRECTIONS)


EVERY_STEP: Mapping[str, Any] = {"sample_period": 1}
"""The base for ways in that are there to find faults, not to stay in a job: no step is slept through."""
_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def load(
    given: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    start: str | None = None,
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings in force.

    Args:
        given: keyword arguments; None values count as not given.
        environment: environment variables, ``os.environ`` by default.
        start: folder from which pyproject.toml is searched upwards; the current one by default.
        base: values, by field, for what is set nowhere; those of :class:`Settings` by default.

    Raises:
        SettingsError: an unknown name, rule code or value, with the place it stands in and the closest match.
    """
    merged: dict[str, Any] = dict(base or {})
    for place, values in (
        _from_pyproject(start),
        ("the environment", _from_environment(os.environ if environment is None else environment)),
        ("the arguments", {name: value for name, value in given.items() if value is not None}),
    ):
        for name, value in values.items():
            field = _known(name, place)
            merged[field] = _checked(field, value, place)
    return Settings(**merged)


def _known(name: str, place: str) -> str:
    plain = name.removeprefix(_VARIABLE).lower().replace("-", "_")
    if plain in _FIELDS:
        return plain
    close = difflib.get_close_matches(plain, _FIELDS, n=1, cutoff=0.5)
    if close:
        nearest = _VARIABLE + close[0].upper() if name.startswith(_VARIABLE) else close[0]
        raise SettingsError(f"Unknown setting {name!r} in {place}. Did you mean {nearest!r}?")
    raise SettingsError(f"Unknown setting {name!r} in {place}. Known are {', '.join(sorted(_FIELDS))}.")


def _checked(name: str, value: Any, place: str) -> Any:
    try:
        return _CHECKS.get(_FIELDS[name].type, _text)(value) if name not in _OWN else _OWN[name](value)
    except SettingsError as problem:
        raise SettingsError(f"{name} in {place}: {problem}") from None
    except (TypeError, ValueError) as problem:
        raise SettingsError(f"Setting {name!r} in {place} cannot be {value!r}: {problem}.") from None


def _whole(value: Any) -> int:
    number = _number(value, "it takes a whole number, 0 or more")
    if not number.is_integer() or number < 0:
        raise ValueError("it takes a whole number, 0 or more")
    return int(number)


def _share(value: Any) -> float:
    number = _number(value, "it takes a number between 0 and 1")
    if not 0.0 <= number <= 1.0:
        raise ValueError("it takes a number between 0 and 1")
    return number


def _number(value: Any, expected: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(expected) from None


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("it takes text")
    return os.fspath(value)


def _file(value: Any) -> str:
    """A path that still leads to the same file after the program has changed its folder."""
    return str(pathlib.Path.cwd() / _text(value))


def _device(value: Any) -> str:
    from deviceguard.simulate.spec import parse_spec

    return str(parse_spec(_text(value)))


def _policy(value: Any) -> str:
    if value in POLICIES:
        return str(value)
    close = difflib.get_close_matches(str(value), POLICIES, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(f"There is no policy {value!r}; there are {', '.join(POLICIES)}.{hint}")


def level(value: Any) -> str:
    """One of the levels of a transfer policy.

    Raises:
        SettingsError: there is no such level.
    """
    if value in LEVELS:
        return str(value)
    close = difflib.get_close_matches(str(value), LEVELS, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(f"There is no level {value!r} for transfers; there are {', '.join(LEVELS)}.{hint}")


def _codes(value: str | Iterable[str]) -> tuple[str, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else [str(part) for part in value]
    expand(parts)
    return tuple(part.strip().upper() for part in parts)


_CHECKS: dict[Any, Callable[[Any], Any]] = {"tuple[str, ...]": _codes, "int": _whole, "float": _share}
"""What reads a value, by the annotation of its field."""
_OWN: dict[str, Callable[[Any], Any]] = {"policy": _policy, "simulate": _device}
_OWN.update(dict.fromkeys(("control", "fix_diff", "json", "json_lines", "prometheus"), _file))
_OWN.update(dict.fromkeys(DIRECTIONS, level))
"""What reads the value of single fields."""


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Values by the names of their variables; ``DEVICEGUARD`` alone is the policy."""
    values = {
        name: value
        for name, value in environment.items()
        if name.startswith(_VARIABLE) and value and name not in _NO_SETTINGS
    }
    if environment.get(PREFIX):
        values[_VARIABLE + "POLICY"] = _SWITCHES.get(environment[PREFIX], environment[PREFIX])
    return values


def _from_pyproject(start: str | None) -> tuple[str, dict[str, Any]]:
    try:
        folder = pathlib.Path(start or pathlib.Path.cwd()).resolve()
    except OSError:
        return "pyproject.toml", {}  # the current folder is gone
    for candidate in (folder, *folder.parents):
        path = candidate / "pyproject.toml"
        if path.is_file():
            return str(path), _own_table(path)
    return "pyproject.toml", {}


def _own_table(path: pathlib.Path) -> dict[str, Any]:
    table = _read_toml(path).get("tool", {}).get("deviceguard", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: tool.deviceguard must be a table")
    return table


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
