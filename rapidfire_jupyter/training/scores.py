"""Metrics of generated answers against references: plain strings in, numbers out.

| metric | of | scale | computed by |
| --- | --- | --- | --- |
| bleu, chrf | all answers as one corpus | 0 to 100 | sacrebleu |
| rouge1, rouge2, rougeL | each answer, then their mean (F measure) | 0 to 1 | rouge-score |
| exact_match | each answer, then their mean | 0 or 1 | equal without blanks around |

BLEU's tokenizer is sacrebleu's default (13a); where most letters of the references are of a script
written without spaces, 13a would see one word a sentence: then it is sacrebleu's "zh" (Chinese) or
"char" (Japanese, Thai, Lao, Khmer, Burmese). ROUGE's own tokenizer drops all that is not ASCII, so
it gets `Words`, which gives the same words for English. Several references: BLEU and chrF take all,
ROUGE and exact match the best one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

METRICS = ("bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact_match")
_ROUGE = ("rouge1", "rouge2", "rougeL")
_NO_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"

ComputeMetrics = Callable[[list[str], Any], Mapping[str, Any]]  # Any: references, numbers


def corpus_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """The metrics of a set of answers; nothing for an empty one.

    Args:
        predictions: An answer of each row.
        references: One text or more for each row; rows may have different numbers of them.

    Raises:
        ValueError: There are not as many lists of references as answers, or one is empty.
    """
    _check(predictions, references)
    if not predictions:
        return {}
    rouges = [_rouge(p, r) for p, r in zip(predictions, references, strict=True)]
    matches = [_exact(p, r) for p, r in zip(predictions, references, strict=True)]
    streams, bleu, chrf = _streams(references), _bleu(_tokenizer(references), False), _chrf()
    return {
        "bleu": float(bleu.corpus_score(predictions, streams).score),
        "chrf": float(chrf.corpus_score(predictions, streams).score),
        **{name: sum(row[name] for row in rouges) / len(rouges) for name in _ROUGE},
        "exact_match": sum(matches) / len(matches),
    }


def row_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> list[dict[str, float]]:
    """The metrics of each answer by itself; BLEU as sacrebleu's `sentence_bleu` (effective order).

    Raises:
        ValueError: As `corpus_scores`.
    """
    _check(predictions, references)
    bleu, chrf = _bleu(_tokenizer(references), True), _chrf()
    return [
        {
            "bleu": float(bleu.sentence_score(prediction, list(known)).score),
            "chrf": float(chrf.sentence_score(prediction, list(known)).score),
            **_rouge(prediction, known),
            "exact_match": _exact(prediction, known),
        }
        for prediction, known in zip(predictions, references, strict=True)
    ]


def load() -> None:
    """Import what computes the metrics; it takes a second or two, once."""
    _bleu("13a", False), _chrf(), _rouge_scorer(), _words()


class Words:
    """A tokenizer for rouge-score: words of any script in lower case, without punctuation.

    A word is a stretch of letters, marks and digits. In scripts written without spaces each letter,
    with its marks, is one.
    """

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        found: list[str] = _words().findall(text.lower())
        return found


def _check(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} answers need as many lists of references, got {len(references)}"
        )
    for number, known in enumerate(references, start=1):
        if isinstance(known, str) or not known or not all(isinstance(r, str) for r in known):
            raise ValueError(f"row {number}: references must be a list of texts, got {known!r}")


def _streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """References as sacrebleu takes them: the first of each row, the second of each row, ..."""
    most = max(len(known) for known in references)
    return [[known[k] if k < len(known) else None for known in references] for k in range(most)]


def _tokenizer(references: Sequence[Sequence[str]]) -> str:
    """Which tokenizer of sacrebleu is for texts of this script."""
    text = "".join(reference for known in references for reference in known)
    letters, without_spaces = len(_letters().findall(text)), len(_unspaced().findall(text))
    if 2 * without_spaces <= letters:
        return "13a"
    return "zh" if 2 * len(_han().findall(text)) > letters and not _kana().search(text) else "char"


def _rouge(prediction: str, references: Sequence[str]) -> dict[str, float]:
    scores = _rouge_scorer().score_multi(list(references), prediction)
    return {name: float(scores[name].fmeasure) for name in _ROUGE}


def _exact(prediction: str, references: Sequence[str]) -> float:
    return float(prediction.strip() in {reference.strip() for reference in references})


# Any in the rest: objects of sacrebleu, rouge-score and regex, whose sources have no types for us.
@cache
def _bleu(tokenize: str, effective_order: bool) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenize, effective_order=effective_order)


@cache
def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(_ROUGE), tokenizer=Words())


@cache
def _words() -> Any:
    import regex

    return regex.compile(rf"{_NO_SPACES}\p{{M}}*|(?:(?!{_NO_SPACES})[\p{{L}}\p{{M}}\p{{N}}])+")


@cache
def _letters() -> Any:
    import regex

    return regex.compile(r"\p{L}")


@cache
def _unspaced() -> Any:
    import regex

    return regex.compile(rf"(?=\p{{L}}){_NO_SPACES}")


@cache
def _han() -> Any:
    import regex

    return regex.compile(r"\p{Han}")


@cache
def _kana() -> Any:
    import regex

    return regex.compile(r"[\p{Hiragana}\p{Katakana}]")
