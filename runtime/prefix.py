"""How far two texts agree: what a cache or an index may keep."""

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of first tokens in which a and b agree.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    shared = min(len(a), len(b))
    a, b = list(a[:shared]), list(b[:shared])  # a tuple equals no list
    if a == b:  # the usual case
        return shared
    agreed, differ = 0, shared  # a bisection, each comparison half as long as the one before
    while differ - agreed > 1:
        middle = (agreed + differ) // 2
        if a[agreed:middle] == b[agreed:middle]:
            agreed = middle
        else:
            differ = middle
    return agreed
