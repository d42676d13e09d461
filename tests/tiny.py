"""The tiny model, tokenizer and data of all tests: random weights from a seed, no download."""

import torch

WORDS = [
    "how",
    "do",
    "i",
    "cancel",
    "my",
    "order",
    "please",
    "help",
    "me",
    "where",
    "is",
    "the",
    "refund",
    "for",
    "item",
    "number",
    "thank",
    "you",
    "we",
    "are",
    "sorry",
    "your",
    "account",
    "will",
    "be",
    "updated",
    "today",
    "contact",
    "support",
    "team",
    "and",
    "they",
    "can",
    "change",
    "it",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer():
    """A byte-level BPE tokenizer trained on a few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    made.chat_template = TEMPLATE
    return made


def model(hidden=32, layers=2, dropout=0.0, dtype=torch.float32, seed=0, scores=False, tied=False):
    """A Llama of random weights; the caller's random streams stay as they were.

    With `scores` it gives one number for a text instead of tokens.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    head, more = (
        (LlamaForSequenceClassification, {"num_labels": 1})
        if scores
        else (
            LlamaForCausalLM,
            {},
        )
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = head(
            LlamaConfig(
                vocab_size=320,
                hidden_size=hidden,
                intermediate_size=2 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                attention_dropout=dropout,
                tie_word_embeddings=tied,
                max_position_embeddings=512,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                **more,
            )
        )
    return made.to(dtype)


def create_model(config):
    """create_model_fn of the tests; `model_kwargs` may set the arguments of `model`."""
    kwargs = dict(config["model_kwargs"])
    if isinstance(kwargs.get("dtype"), str):
        kwargs["dtype"] = getattr(torch, kwargs["dtype"])
    kwargs["scores"] = config.get("model_type") == "sequence_classification"
    return model(**kwargs), tokenizer()


def sentence(number, words=6):
    """A sentence that depends on nothing but its number."""
    return " ".join(WORDS[(number * 7 + k * (number % 5 + 1)) % len(WORDS)] for k in range(words))


def sft_rows(count=24):
    """Prompt and completion rows of different lengths, all distinct."""
    return [
        {
            "prompt": f"{n} {sentence(n, 3 + n % 5)}",
            "completion": f" {sentence(n + 1, 2 + n % 7)} {n}",
        }
        for n in range(count)
    ]


def dpo_rows(count=16):
    """Preference rows."""
    return [
        {
            "prompt": f"{n} {sentence(n, 4)}",
            "chosen": f" {sentence(n + 1, 3 + n % 3)}",
            "rejected": f" {sentence(n + 2, 2 + n % 4)}",
        }
        for n in range(count)
    ]


def kto_rows(count=12):
    """Answers with a label."""
    return [
        {
            "prompt": f"{n} {sentence(n, 4)}",
            "completion": f" {sentence(n + 1, 3 + n % 3)}",
            "label": n % 3 != 1,
        }
        for n in range(count)
    ]


def grpo_rows(count=8):
    """Prompts."""
    return [{"prompt": f"{n} {sentence(n, 4)}"} for n in range(count)]


def reward_length(completions, **kwargs):
    """A reward that differs between completions."""
    return [float(len(c) % 7) for c in completions]


def __getattr__(name):
    """`Callback`, transformers' TrainerCallback, imported when it is first used."""
    if name == "Callback":
        from transformers import TrainerCallback

        return TrainerCallback
    raise AttributeError(name)
