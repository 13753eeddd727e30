"""Drafters by name, one file each. `a+b` asks a, then b if a has nothing to propose."""

from collections.abc import Callable, Mapping

from specrt.runtime.drafters.first import First
from specrt.runtime.errors import RequestError
from specrt.runtime.interfaces import Drafter


def named(name: str, makers: Mapping[str, Callable[[], Drafter]]) -> Drafter:
    """The drafter called `name`, made by the maker of that name; of `a+b` the combination."""
    parts = name.split("+")
    for part in parts:
        if part not in makers:
            raise RequestError(f"no drafter {part!r}: there are {', '.join(sorted(makers))}")
    drafters = [makers[part]() for part in parts]
    return drafters[0] if len(drafters) == 1 else First(drafters)
