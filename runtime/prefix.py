"""How far two texts agree: what a cache or an index may keep."""

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of first tokens in which a and b agree.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    shared = min(len(a), len(b))
    if a[:shared] == b[:shared]:  # the usual case, at the speed of one comparison
        return shared
    return next((i for i in range(shared) if a[i] != b[i]), shared)
