"""Scores of answers: those of sacrebleu and rouge-score called by hand, also at the edges."""

import math

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from rapidfire_jupyter.training.scores import METRICS, Words, corpus_scores, row_scores

ANSWERS = [
    "You can cancel your order in the app.",
    "the refund will be made today",
    "We're sorry, it is item_number 3.5!",
]
RIGHT = [
    ["You can cancel an order in our app.", "Open the app and cancel it."],
    ["The refund is made today."],
    ["Sorry: it is item number 3.5.", "It's item 3.", "We are sorry."],
]


def test_scores_are_those_of_the_libraries_called_by_hand():
    streams = [
        [known[k] if k < len(known) else None for known in RIGHT]
        for k in range(max(map(len, RIGHT)))
    ]
    rouge = RougeScorer(["rouge1", "rouge2", "rougeL"])
    by_row = [
        rouge.score_multi(right, answer) for answer, right in zip(ANSWERS, RIGHT, strict=True)
    ]

    scores = corpus_scores(ANSWERS, RIGHT)

    assert tuple(scores) == METRICS
    assert scores["bleu"] == sacrebleu.corpus_bleu(ANSWERS, streams).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(ANSWERS, streams).score
    for name in ("rouge1", "rouge2", "rougeL"):
        assert scores[name] == sum(row[name].fmeasure for row in by_row) / 3
    for row, answer, right in zip(row_scores(ANSWERS, RIGHT), ANSWERS, RIGHT, strict=True):
        assert row["bleu"] == sacrebleu.sentence_bleu(answer, right).score
        assert row["chrf"] == sacrebleu.sentence_chrf(answer, right).score


def test_a_row_may_have_more_references_than_another_and_any_of_them_may_match():
    assert corpus_scores(["a b c d"], [["x", "a b c d"]])["exact_match"] == 1
    both = corpus_scores(["a b c d e", "f g h i j"], [["a b c d e"], ["z", "f g h i j"]])

    assert both["bleu"] == pytest.approx(100) and both["exact_match"] == 1


@pytest.mark.parametrize(
    "right", [["ok"], [["ok"]] * 2, [["ok"], [], ["ok"]], [[None], ["a"], ["b"]]]
)
def test_references_of_another_shape_or_number_are_refused(right):
    with pytest.raises(ValueError, match=r"need as many lists|row \d: references must be"):
        corpus_scores(["a", "b", "c"], right)


def test_empty_answers_score_zero_and_no_rows_have_no_scores():
    answers, right = ["", " ", "\x0c", ".", "ok"], [["ok"], ["ok"], ["ok"], ["ok"], [""]]

    scores = corpus_scores(answers, right)

    assert all(math.isfinite(value) for value in scores.values())
    assert scores["bleu"] == scores["rougeL"] == scores["exact_match"] == 0
    assert corpus_scores([], []) == {} and row_scores([], []) == []
    assert all(
        row["bleu"] == row["chrf"] == row["rouge1"] == 0 for row in row_scores(answers, right)
    )


def test_words_of_english_are_those_of_rouge_score():
    for text in (*ANSWERS, "Don't re-fund A.B.C, item_number 3,5 (today)…"):
        assert Words().tokenize(text) == DefaultTokenizer().tokenize(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Заказ отменён, спасибо", ["заказ", "отменён", "спасибо"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("取消订单 ok", ["取", "消", "订", "单", "ok"]),
        ("ดี", ["ดี"]),
        ("naïve café", ["naïve", "café"]),
    ],
)
def test_words_of_other_scripts_are_kept(text, words):
    assert Words().tokenize(text) == words


@pytest.mark.parametrize(
    ("answer", "right", "tokenizer"),
    [
        ("我想要取消我的订单", "我想取消我的订单", "zh"),
        ("注文をキャンセルしたい", "注文をキャンセルする", "char"),
        ("ฉันต้องการยกเลิกคำสั่ง", "ฉันต้องการยกเลิก", "char"),
        ("отменить мой заказ сейчас", "отменить мой заказ сразу", "13a"),
    ],
)
def test_scripts_without_spaces_get_a_tokenizer_that_sees_words_in_them(answer, right, tokenizer):
    scores = corpus_scores([answer], [[right]])

    by_hand = sacrebleu.corpus_bleu([answer], [[right]], tokenize=tokenizer).score
    assert scores["bleu"] == by_hand > 0 and 0 < scores["rouge1"] < 1
