"""How many tokens to draft next. 0 is plain decoding."""

from dataclasses import dataclass
from typing import Protocol

from specrt.runtime.errors import RequestError
from specrt.runtime.trace import Step

AUTO_BUDGET = 4  # small: 4 rows cost 1.1 to 1.6 times one row on the CPUs measured


class Controller(Protocol):
    """Chooses before each step, learns from each step."""

    @property
    def reason(self) -> str: ...  # why the latest budget, for the trace

    def budget(self) -> int: ...
    def observe(self, step: Step) -> None: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same budget at every step."""

    tokens: int = AUTO_BUDGET

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise RequestError(f"the draft budget must be 0 or more tokens, not {self.tokens}")

    @property
    def reason(self) -> str:
        return f"fixed budget {self.tokens}"

    def budget(self) -> int:
        return self.tokens

    def observe(self, step: Step) -> None:
        """Learns nothing."""
