"""Whether text with drafts is text without to the last token, and where plain decoding must be.

It is where a row's logits are the same bits whatever rows it is read with. Kernels that choose
their way by the number of rows are uneven in the last bits, and a near tie may fall otherwise.
"""

from specrt.runtime.bundle import Manifest


def unevenness(manifest: Manifest) -> str:
    """How text with drafts may come to differ from text without, "" if it is the same to the last
    token: a row's logits may depend on the rows it is read with."""
    if manifest.flavour in ("cuda", "tensorrt"):
        return "the kernels of a GPU differ with the number of rows"
    for name in ("rows", "chunks"):
        found = manifest.checks.get(name)
        rms = found.get("rms") if isinstance(found, dict) else None
        if not isinstance(rms, int | float):
            if manifest.flavour == "optimum":  # nothing is known of such a graph
                return f"the graph was not checked for {name}"
        elif rms != 0:
            return f"logits differ between block sizes (checks.{name}.rms is {rms:.2g})"
    return ""


def plain_reason(manifest: Manifest) -> str:
    """Why `auto` must not draft with this bundle, "" if it may.

    On a GPU it may: what makes it fast there are the very kernels that are uneven, by near ties.
    """
    found = "" if manifest.flavour in ("cuda", "tensorrt") else unevenness(manifest)
    return found and f"plain: {found}"
