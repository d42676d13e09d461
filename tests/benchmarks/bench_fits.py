"""N runs in turns against the same N one after another with plain TRL.

(a) wall time of everything, (c) time until all N have a first evaluation at the same step. Both
sides load, tokenise, train, evaluate at the same steps and log the same losses, in one process,
A B B A. The engine also saves a checkpoint at each chunk's end; plain TRL saves once, at the end.
"""

import workload
from figures import arguments, ratio, show


def main():
    options = arguments(__doc__)
    works = {"tiny": workload.Work("tiny", 6, 24, 4, evaluate=True)}
    if not options.quick:
        works["10M"] = workload.Work("10M", 6, 48, 4, evaluate=True)
    for size, work in works.items():
        rounds = options.rounds or {"tiny": 5, "10M": 3}[size]
        figures = compare(work, rounds)
        show(
            f"{work.runs} runs of {work.steps} steps, {size}, {rounds} rounds",
            figures,
            options.json,
        )


def compare(work, rounds):
    """Both sides, interleaved; the first round of each warms imports up and is left out."""
    sides = {"plain": workload.one_by_one, "ours": workload.sliced}
    for side in sides.values():
        side(work)
    took = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            took[name].append(sides[name](work))
    for ours, plain in zip(took["ours"], took["plain"], strict=True):
        assert ours.losses == plain.losses, "the two sides trained different things"

    wall = {name: [o.wall_s for o in outcomes] for name, outcomes in took.items()}
    cpu = {name: [o.cpu_s for o in outcomes] for name, outcomes in took.items()}
    first = {name: [o.first_eval_s for o in outcomes] for name, outcomes in took.items()}
    return [
        ratio("(a) wall time, ours / plain TRL", wall["ours"], wall["plain"], 1.0),
        ratio("    processor time", cpu["ours"], cpu["plain"]),
        ratio("(c) until all have an evaluation", first["ours"], first["plain"], 1.0,
              note=f"{work.chunks} chunks"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
