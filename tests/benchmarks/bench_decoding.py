"""(g) Answers of 8 runs of one base, decoded together and one run after another.

The answers must be the same. Once as what decoding alone takes, by shape: the first time that a
shape is met, it is tried (`cold`). Once as a whole experiment, training and losses included.
Once as `exp.sample` of runs that are open, and of those that have ended.
"""

import time

import torch
import workload
from figures import arguments, ratio, show
from peft import LoraConfig, get_peft_model

from rapidfire_jupyter.search import as_runs
from rapidfire_jupyter.training import generation, mixed, models

RUNS, ROWS, TOKENS, PROMPTS = 8, 8, 32, 16
TARGET = 1 / 1.5  # of the time of one by one


def main():
    options = arguments(__doc__)
    for size in ("tiny",) if options.quick else ("tiny", "10M"):
        rounds = options.rounds or (2 if options.quick else 5)
        figures = [
            *decoding(size, rounds),
            *experiments(size, max(2, rounds // 2)),
            *asking(size, max(2, rounds // 2)),
        ]
        title = f"answers of {RUNS} runs to {PROMPTS} prompts of {TOKENS} tokens, {size}"
        show(f"{title}, {rounds} rounds", figures, options.json)


def decoding(size, rounds):
    """CPU seconds of both sides, interleaved: together / one by one."""
    work = workload.Work(size, RUNS, 1)
    one = as_runs(work.configs())[0]
    base = models.load_base(one, work.load, torch.device("cpu"), "base-1")
    runs = [adapted(base, one, seed) for seed in range(RUNS)]
    adapters = [mixed.adapter(run, base) for run in runs]
    how = generation.greedy(runs[0], workload.tiny.tokenizer(), TOKENS)
    for words in (5, 60):
        prompts = asked(words)
        mixer, took = mixed.Mixer(), {"together": [], "one by one": []}
        most = mixed.runs_at_once(prompts, ROWS)

        def together(mixer=mixer, prompts=prompts, most=most):
            made = []
            for first in range(0, RUNS, most):
                some = slice(first, first + most)
                made += mixer.decode(
                    base, runs[first], adapters[some], how, prompts, ROWS, lambda: None
                )
            return made

        def one_by_one(prompts=prompts):
            return [
                [tuple(a) for a in generation.decode(run, how, prompts, ROWS, lambda: None)]
                for run in runs
            ]

        cold, (made, alone) = timed(together)[0], (together(), one_by_one())
        assert made == alone, "not the same answers"
        for number in range(rounds):
            sides = {"together": together, "one by one": one_by_one}
            for side in sorted(sides, reverse=number % 2 == 1):
                took[side].append(timed(sides[side])[0])
        width = max(map(len, prompts))
        note = f"{most} runs at once" if mixer.answered else "not shared: other bits"
        name = f"(g) prompts of {width} tokens"
        yield ratio(name, took["together"], took["one by one"], TARGET, note)
        yield ratio("    cold", [cold] * rounds, took["one by one"])


def adapted(base, one, seed):
    """A run's model, its adapter as if it had been trained."""
    torch.manual_seed(seed)
    skeleton, _ = models.skeleton(base, one, LoraConfig(**workload.LORA), seed)
    model = get_peft_model(skeleton, LoraConfig(**workload.LORA))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, 0.0, 0.02)
    return model.eval()


def asked(words):
    tokenizer = workload.tiny.tokenizer()
    texts = [f"{n} {workload.tiny.sentence(n, words + n % 6)}" for n in range(PROMPTS)]
    return [tuple(tokenizer(text)["input_ids"]) for text in texts]


def timed(function):
    start = time.process_time()
    made = function()
    return time.process_time() - start, made


def experiments(size, rounds):
    """CPU seconds of whole experiments: answers together / one by one."""
    took = {"together": [], "one by one": []}
    for number in range(rounds):
        for side in sorted(took, reverse=number % 2 == 1):
            with workload.shared(side == "together"):
                took[side].append(timed(lambda: answering(size))[0])
    return [ratio("    whole experiment", took["together"], took["one by one"])]


def answering(size):
    work = workload.Work(size, RUNS, 8, 4, True)
    exp = workload.experiment(work, generate_rows=PROMPTS, max_new_tokens=TOKENS)
    exp.wait()
    exp.end()
    assert all(run.status == "completed" for run in exp.runs)


def asking(size, rounds):
    """CPU seconds of `exp.sample`: answers together / one by one."""
    exp = workload.experiment(workload.Work(size, RUNS, 8, 4, True), generate_rows=0)
    exp.pause_all().wait()
    yield sampling(exp, "    exp.sample, open runs", rounds)
    exp.resume_all().wait()
    exp.wait()
    yield sampling(exp, "    exp.sample, runs that have ended", rounds)
    exp.end()


def sampling(exp, name, rounds):
    """Runs asked the same, in other words each time: no shape is known from the time before."""
    took, runs = {"together": [], "one by one": []}, list(range(1, RUNS + 1))
    for number in range(rounds):
        prompts, made = [f"{n} {workload.tiny.sentence(n, 5 + number)}" for n in range(ROWS)], []
        for side in sorted(took, reverse=number % 2 == 1):
            with workload.shared(side == "together"):
                seconds, told = timed(lambda asked=prompts: exp.sample(runs, asked, TOKENS))
            took[side].append(seconds)
            made.append(told)
        assert made[0].equals(made[1]), "not the same answers"
    return ratio(name, took["together"], took["one by one"], TARGET, f"{ROWS} prompts")


if __name__ == "__main__":
    main()
