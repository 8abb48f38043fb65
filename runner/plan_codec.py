"""Plans as documents (JSON) and as PLAN.toml. Strict: an unknown key is an error, not ignored.

Money is written as text, so that no digit is lost. Every error is one line that names the key.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from runner.plan import ExperimentPlan, PlanError

SCHEMA_VERSION = 1


def to_document(plan: ExperimentPlan) -> dict[str, Any]:
    """``plan`` as plain JSON values."""
    return {"schema_version": SCHEMA_VERSION, **_plain(asdict(plan))}


def from_document(document: Mapping[str, Any]) -> ExperimentPlan:
    """The plan that ``to_document`` wrote. Raises PlanError naming the key that is wrong."""
    if not isinstance(document, Mapping):
        raise PlanError("The plan must be an object.")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise PlanError(f"schema_version: expected {SCHEMA_VERSION}, the only one known here.")
    return _plan({key: value for key, value in document.items() if key != "schema_version"})


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A PLAN.toml: the plan, and the traffic file it is about."""

    plan: ExperimentPlan
    traffic: Path
    """Relative paths count from the folder of the plan."""


def from_toml(path: Path | str) -> PlanFile:
    """Read a PLAN.toml (``python -m runner run --example`` prints one). Raises PlanError."""
    source = Path(path)
    try:
        document = tomllib.loads(source.read_text(encoding="utf-8-sig"), parse_float=Decimal)
    except OSError as error:
        raise PlanError(error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        raise PlanError(f"not valid TOML: {error}") from None
    traffic = document.pop("traffic", None)
    if not isinstance(traffic, dict):
        raise PlanError('traffic: missing; add [traffic] with file = "..."')
    unknown = sorted(set(traffic) - {"file"})
    if unknown:
        raise PlanError(f"traffic.{unknown[0]}: unknown key")
    name = traffic.get("file")
    if not isinstance(name, str) or not name:
        raise PlanError("traffic.file: expected the path of a traffic file")
    return PlanFile(_plan(document), source.parent / name)


def _plan(document: Mapping[str, Any]) -> ExperimentPlan:
    plan = _decode(ExperimentPlan, dict(document), "")
    assert isinstance(plan, ExperimentPlan)
    return plan


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _decode(kind: Any, value: Any, where: str) -> Any:
    """``value`` as ``kind``; ``where`` is the key's path, for the error."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = next(item for item in get_args(kind) if item is not type(None))
        return None if value is None else _decode(inner, value, where)
    if origin is Literal:
        return _decode_choice(get_args(kind), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise PlanError(f"{where}: expected a list")
        inner = get_args(kind)[0]
        return tuple(_decode(inner, x, f"{where}[{n}]") for n, x in enumerate(value, start=1))
    if origin is dict:
        return _decode_table(kind, value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_object(kind, value, where)
    return _decode_scalar(kind, value, where)


def _decode_object(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise PlanError(f"{where or 'plan'}: expected a table")
    prefix = f"{where}." if where else ""
    hints = get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}
    for key in value:
        if key not in known:
            raise PlanError(f"{prefix}{key}: unknown key; known are {', '.join(known)}")
    for name, item in known.items():
        needed = item.default is MISSING and item.default_factory is MISSING
        if needed and name not in value:
            raise PlanError(f"{prefix}{name}: missing")
    return kind(**{key: _decode(hints[key], item, prefix + key) for key, item in value.items()})


def _decode_choice(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices:
        raise PlanError(f"{where}: expected one of {', '.join(map(str, choices))}")
    return value


def _decode_table(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise PlanError(f"{where}: expected a table")
    inner = get_args(kind)[1]
    return {
        key: _free(item, f"{where}.{key}")
        if inner is Any
        else _decode(inner, item, f"{where}.{key}")
        for key, item in value.items()
    }


def _free(value: Any, where: str) -> Any:
    """Parameters whose meaning another module checks: any plain value."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {str(key): _free(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_free(item, where) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise PlanError(f"{where}: expected text, a number, true or false, a list or a table")


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    if kind is str and type(value) is date:  # TOML has dates of its own
        return value.isoformat()
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if kind is int and isinstance(value, int) and is_number:
        return value
    if kind is float and is_number:
        try:
            return float(value)
        except OverflowError:
            raise PlanError(f"{where}: the number is too large") from None
    if kind is Decimal and (is_number or isinstance(value, str)):
        try:
            return Decimal(str(value))
        except InvalidOperation:
            pass
    expected = {
        bool: "true or false",
        str: "text",
        int: "a whole number",
        float: "a number",
        Decimal: "an amount such as 2.50",
    }[kind]
    raise PlanError(f"{where}: expected {expected}")
