"""Tiny models that read words, their tokenizers, and files of texts."""

import random

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GOOD, BAD, PLAIN = (
    ["good", "fine", "bright"],
    ["bad", "dull", "poor"],
    ["the", "a", "film", "song", "is", "was", "very"],
)
WORDS = [*SPECIAL, *GOOD, *BAD, *PLAIN, "not", ",", "and"]
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def make_tokenizer(*, special=True, vocabulary=None):
    """Return a tokenizer of whole words; without `special` it adds no token of its own and has none for padding."""
    words = vocabulary or WORDS
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if not special:
        return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", model_max_length=32)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **tokens)


def make_model(folder, kind="bert", *, vocabulary=None, vocab_size=None, layers=2):
    """Write a tiny random model with its tokenizer, as `save_pretrained` does."""
    transformers.set_seed(0)
    count, size = vocab_size or len(vocabulary or WORDS), {**SIZE, "num_hidden_layers": layers}
    if kind == "gpt":
        config = transformers.OpenAIGPTConfig(n_embd=16, n_layer=layers, n_head=2, n_positions=32, vocab_size=count)
        model = transformers.OpenAIGPTModel(config)
    elif kind == "llama":
        config = transformers.LlamaConfig(vocab_size=count, max_position_embeddings=32, num_key_value_heads=1, **size)
        model = transformers.LlamaModel(config)
    else:
        model = transformers.BertModel(transformers.BertConfig(vocab_size=count, max_position_embeddings=32, **size))
    model.save_pretrained(folder)
    make_tokenizer(special=kind == "bert", vocabulary=vocabulary).save_pretrained(folder)
    return folder


def sentences(count, seed=0):
    """Return sentences that are good or bad, by one word in them."""
    draws, found = random.Random(seed), []
    for _ in range(count):
        good = draws.random() < 0.5
        words = [draws.choice(PLAIN) for _ in range(draws.randint(1, 9))]
        words.insert(draws.randint(0, len(words)), draws.choice(GOOD if good else BAD))
        found.append((" ".join(words), "good" if good else "bad"))
    return found


def write_cola(folder, *, train=40, dev=12):
    """Write sentences in CoLA's layout: no header, four columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 0), ("dev", dev, 1)):
        rows = [
            f"gj04\t{int(label == 'good')}\t{'' if label == 'good' else '*'}\t{text}"
            for text, label in sentences(count, seed)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_tsv(file, columns, rows):
    """Write rows under named columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join("\t".join(row) + "\n" for row in [columns, *rows]), encoding="utf-8")
    return file
