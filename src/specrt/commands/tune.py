"""`specrt tune`: what a bundle costs on this device, and when drafts pay."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specrt.commands.options import add_command, add_provider, line
from specrt.runtime.errors import RequestError

_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16)
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "tune",
        run,
        arguments="BUNDLE [options]",
        does="measure this device: what steps and drafts cost, and how often drafts must be right",
        examples="specrt tune bundle\nspecrt tune bundle --threads 1,2,4 --json",
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="an exported folder")
    add = parser.add_argument
    add(
        "--threads",
        metavar="N,…",
        type=_numbers,
        default=(0,),
        help="numbers to compare; the fastest is kept (0: one per physical core)",
    )
    add("--seconds", metavar="S", type=float, default=40.0, help="for the curves (40)")
    add_provider(parser)
    add("--json", action="store_true", help="print the profile as JSON")


def run(args: argparse.Namespace) -> int:
    from specrt.console import progress
    from specrt.runtime.profile import write
    from specrt.runtime.tuning import Plan, tune

    if not args.seconds > 0:
        raise RequestError(f"--seconds must be above 0, not {args.seconds}")
    with progress() as show:
        plan = Plan(threads=args.threads, seconds=args.seconds)
        profile = tune(args.bundle, args.provider, plan, show)
    file = write(args.bundle, profile)
    if args.json:
        print(json.dumps(asdict(profile)))
        return 0
    for told in describe(profile):
        print(told)
    print(line("kept", str(file or "nowhere: the bundle cannot be written to")))
    return 0


def describe(profile: Any) -> Iterator[str]:
    """A profile in lines of text."""
    from specrt.runtime.profile import break_even

    yield line("device", f"{profile.key.device}, {profile.key.provider}, threads {profile.threads}")
    yield line("rows", "".join(f"{rows:>7}" for rows in _ROWS))
    for curve in profile.curves:
        yield line(
            f"ms at {curve.context}",
            "".join(f"{curve.us[rows - 1] / 1000:>7.1f}" for rows in _ROWS)
            + f"   spread {curve.spread / 10:.0f} %",
        )
        yield line("  v", "".join(f"{curve.v[rows - 1]:>7.2f}" for rows in _ROWS))
    for draft in profile.drafts:
        ms = f"{draft.token_us / 1000:.1f} ms a token, {draft.read_us / 1000:.1f} ms to read one"
        yield line("drafter", f"{draft.name}: {ms}")
    yield line("prefill", f"{profile.prefill} tokens a second")
    yield line("overhead", f"{profile.overhead_us / 1000:.2f} ms a step")
    yield "a draft of so many tokens pays if each is right more often than"
    yield line("tokens", "".join(f"{budget:>7}" for budget in _BUDGETS))
    costs = profile.costs({})
    for name, shares in break_even(costs.curve, costs.drafts, _BUDGETS).items():
        yield line(name, "".join(f"{_share(share):>7}" for share in shares.values()))


def _share(share: float | None) -> str:
    return "never" if share is None else f"{share:.0%}"


def _numbers(argument: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in argument.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{argument!r} is no list of numbers such as 1,2,4")
    return numbers
