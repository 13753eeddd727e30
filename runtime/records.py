"""JSON values -> frozen dataclasses, strictly: no unknown key, no missing key, no wrong type.

The fields' annotations are the schema: a dataclass, tuple[X, ...], Mapping, X | None, str, int.
Ranges and meanings are each dataclass's own to check, in __post_init__.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from specrt.runtime.errors import BundleError

T = TypeVar("T")
_LONGEST_TEXT = 1000  # characters
_NAMES = {dict: "an object", list: "a list", str: "a text", int: "an integer"}


def parse_json(raw: bytes) -> Any:
    """UTF-8 JSON without NaN or infinities; BundleError otherwise."""
    try:
        return json.loads(raw.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"not JSON ({str(error)[:100] or 'nested too deeply'})") from None


def read_record(kind: type[T], value: Any, where: str = "") -> T:
    """value (of parse_json) as the dataclass `kind`; `where` names it in messages."""
    given = _of_type(dict, value, where or kind.__name__)
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    if unknown := given.keys() - known.keys():
        raise BundleError(f"{where or kind.__name__} has an unknown key {shown(min(unknown))}")
    missing = {n for n, f in known.items() if f.default is f.default_factory is MISSING}
    if missing := missing - given.keys():
        raise BundleError(f"{where or kind.__name__} lacks {min(missing)}")
    prefix = f"{where}." if where else ""
    return kind(**{n: _read(known[n].type, v, prefix + n) for n, v in given.items()})


def shown(value: object) -> str:
    """value for an error message: one line, short, harmless on a terminal."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _read(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return read_record(kind, value, where)  # type: ignore[arg-type]
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:  # X | None
        return None if value is None else _read(args[0], value, where)
    if origin is tuple:
        items = _of_type(list, value, where)
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is Mapping:
        return _of_type(dict, value, where)
    if type(value) is str and not (value.isprintable() and len(value) <= _LONGEST_TEXT):
        raise BundleError(f"{where} is {shown(value)}, expected a short printable text")
    return _of_type(kind, value, where)


def _of_type(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:  # not isinstance: true is no integer
        raise BundleError(f"{where} is {shown(value)}, expected {_NAMES[kind]}")
    return value


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")
