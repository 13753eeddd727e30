"""Checked access to a checkpoint's configuration: every value has its type and stays in bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class UnsupportedError(ValueError):
    """A checkpoint's configuration cannot be represented: a value is missing, wrong or unknown."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A configuration as nested mappings, read by name. A null counts as absent.

    >>> Fields({"hidden_size": 64}).size("hidden_size")
    64
    """

    values: Mapping[str, Any]

    def defaults(self, values: Mapping[str, Any]) -> "Fields":
        """The same fields, with these values where a name is absent (a null stays a null)."""
        return Fields({**values, **self.values})

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def size(self, name: str, default: int | None = None, limit: int = 1 << 24) -> int:
        """A whole number from 1 to limit."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise UnsupportedError(
                f"{name} is {_short(value)}; it must be a whole number from 1 to {limit}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedError(f"{name} is {_short(value)}; it must be a number")
        if not (0 < value <= 1e30 and math.isfinite(value)):
            raise UnsupportedError(f"{name} is {value}; it must be finite and above 0")
        return float(value)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers above 0."""
        values = self._list(name, count)
        if len(self.values[name]) != count:
            raise UnsupportedError(f"{name} has {len(self.values[name])} values, not {count}")
        return tuple(
            Fields({f"{name}[{i}]": v}).number(f"{name}[{i}]") for i, v in enumerate(values)
        )

    def choices(self, name: str, count: int, allowed: Sequence[Any]) -> tuple[Any, ...]:
        """A list of at least `count` values, each one of those allowed; the first `count`."""
        values = self._list(name, count)
        for value in values:
            if value not in allowed:
                raise UnsupportedError(
                    f"{name} has {_short(value)}, which is not supported; "
                    f"supported: {', '.join(map(str, allowed))}"
                )
        return values

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise UnsupportedError(f"{name} is {_short(value)}; it must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise UnsupportedError(f"{name} is {_short(value)}; it must be text")
        return value

    def nested(self, name: str) -> "Fields":
        """The mapping under a name; empty if absent."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            raise UnsupportedError(f"{name} is {_short(value)}; it must be a mapping")
        return Fields(value)

    def _list(self, name: str, count: int) -> tuple[Any, ...]:
        value = self._get(name, None)
        if not isinstance(value, list | tuple) or len(value) < count:
            held = f"{len(value)} values" if isinstance(value, list | tuple) else _short(value)
            raise UnsupportedError(f"{name} is {held}; it must be a list of {count} values")
        return tuple(value[:count])

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise UnsupportedError(f"{name} is missing")
        return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
