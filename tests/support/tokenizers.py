"""Tiny models with the tokenizers of their kinds, and what these make of texts and pairs."""

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

LETTERS = "abcdefghij"
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
GPT = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
MERGES = [("Ġ", letter) for letter in LETTERS]


def numbered(*words):
    return {word: n for n, word in enumerate(words)}


def byte_level(*special):
    return numbered(*special, *LETTERS, "Ġ", *(f"Ġ{letter}" for letter in LETTERS))


def bert(**more):
    vocab = numbered("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *LETTERS.upper())
    config = transformers.BertConfig(vocab_size=len(vocab), max_position_embeddings=32, **SMALL)
    return config, transformers.BertTokenizer(vocab=vocab, **more)


def roberta(**more):
    vocab = byte_level("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    config = transformers.RobertaConfig(
        vocab_size=len(vocab), max_position_embeddings=34, type_vocab_size=1, pad_token_id=1, **SMALL
    )
    return config, transformers.RobertaTokenizer(vocab=vocab, merges=MERGES, **more)


def gpt(**more):
    vocab = numbered("<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS))
    config = transformers.OpenAIGPTConfig(vocab_size=len(vocab), **GPT)
    return config, transformers.OpenAIGPTTokenizer(vocab=vocab, merges=[], **more)


def gpt2(**more):
    vocab = byte_level("<|endoftext|>")
    config = transformers.GPT2Config(vocab_size=len(vocab), bos_token_id=0, eos_token_id=0, **GPT)
    return config, transformers.GPT2Tokenizer(vocab=vocab, merges=MERGES, **more)


def modernbert(**more):
    vocab = byte_level("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    made = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    own = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config = transformers.ModernBertConfig(
        vocab_size=len(vocab), max_position_embeddings=32, pad_token_id=0, cls_token_id=2, sep_token_id=3, **SMALL
    )
    return config, transformers.PreTrainedTokenizerFast(tokenizer_object=made, **own, **more)


UNIGRAM = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"▁{letter}" for letter in LETTERS), "[MASK]"]


def deberta(**more):
    vocab = [(piece, -1.0 if piece.startswith("▁") else 0.0) for piece in UNIGRAM]
    config = transformers.DebertaV2Config(
        vocab_size=len(vocab), max_position_embeddings=32, type_vocab_size=0, relative_attention=True, **SMALL
    )
    return config, transformers.DebertaV2Tokenizer(vocab=vocab, **more)


def llama(**more):
    vocab = numbered("<unk>", "<s>", "</s>", *LETTERS, "▁", *(f"▁{letter}" for letter in LETTERS))
    config = transformers.LlamaConfig(vocab_size=len(vocab), max_position_embeddings=32, num_key_value_heads=1, **SMALL)
    merges = [("▁", letter) for letter in LETTERS]
    return config, transformers.LlamaTokenizer(vocab=vocab, merges=merges, **more)


def llama3(**more):
    vocab = byte_level("<|begin_of_text|>", "<|end_of_text|>")
    made = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", 0)],
    )
    config = transformers.LlamaConfig(vocab_size=len(vocab), max_position_embeddings=32, num_key_value_heads=1, **SMALL)
    own = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    return config, transformers.PreTrainedTokenizerFast(tokenizer_object=made, **own, **more)


def qwen(**more):
    vocab = byte_level("<|endoftext|>")
    config = transformers.Qwen2Config(vocab_size=len(vocab), max_position_embeddings=32, num_key_value_heads=1, **SMALL)
    return config, transformers.Qwen2Tokenizer(vocab=vocab, merges=MERGES, **more)


def gemma3(**more):
    """A model of images and words, whose sizes of words are nested in its configuration."""
    _, tokenizer = qwen(**more)
    words = {"max_position_embeddings": 32, "num_key_value_heads": 1, "head_dim": 8, **SMALL}
    config = transformers.Gemma3Config(
        text_config={"vocab_size": len(tokenizer), **words},
        vision_config={"image_size": 28, "patch_size": 14, **SMALL},
    )
    return config, tokenizer


# By hand: one text, a pair, the pair's segments (None: not used), the pair cut to 8 tokens at its ends, and at its
# starts. The class token is the first one of encoders, and the last one of decoders.
KINDS = {
    "bert": (
        bert,
        "[CLS] a b [SEP]",
        "[CLS] a b [SEP] g [SEP]",
        [0, 0, 0, 0, 1, 1],
        "[CLS] a b c [SEP] g h [SEP]",
        "[CLS] d e f [SEP] i j [SEP]",
    ),
    "spanbert": (
        lambda **more: bert(do_lower_case=False, **more),
        "[CLS] a b [SEP]",
        "[CLS] a b [SEP] g [SEP]",
        [0, 0, 0, 0, 1, 1],
        "[CLS] a b c [SEP] g h [SEP]",
        "[CLS] d e f [SEP] i j [SEP]",
    ),
    "roberta": (
        roberta,
        "<s> a Ġb </s>",
        "<s> a Ġb </s> </s> g </s>",
        None,
        "<s> a Ġb </s> </s> g Ġh </s>",
        "<s> Ġe Ġf </s> </s> Ġi Ġj </s>",
    ),
    "gpt": (
        gpt,
        "a</w> b</w> [CLS]",
        "a</w> b</w> [SEP] g</w> [CLS]",
        None,
        "a</w> b</w> c</w> [SEP] g</w> h</w> i</w> [CLS]",
        "d</w> e</w> f</w> [SEP] h</w> i</w> j</w> [CLS]",
    ),
    "gpt2": (
        gpt2,
        "a Ġb [CLS]",
        "a Ġb [SEP] g [CLS]",
        None,
        "a Ġb Ġc [SEP] g Ġh Ġi [CLS]",
        "Ġd Ġe Ġf [SEP] Ġh Ġi Ġj [CLS]",
    ),
    "modernbert": (
        modernbert,
        "[CLS] a Ġb [SEP]",
        "[CLS] a Ġb [SEP] g [SEP]",
        None,
        "[CLS] a Ġb Ġc [SEP] g Ġh [SEP]",
        "[CLS] Ġd Ġe Ġf [SEP] Ġi Ġj [SEP]",
    ),
    "deberta": (
        deberta,
        "[CLS] ▁a ▁b [SEP]",
        "[CLS] ▁a ▁b [SEP] ▁g [SEP]",
        None,
        "[CLS] ▁a ▁b ▁c [SEP] ▁g ▁h [SEP]",
        "[CLS] ▁d ▁e ▁f [SEP] ▁i ▁j [SEP]",
    ),
    "llama": (
        llama,
        "▁a ▁b [CLS]",
        "▁a ▁b [SEP] ▁g [CLS]",
        None,
        "▁a ▁b ▁c [SEP] ▁g ▁h ▁i [CLS]",
        "▁d ▁e ▁f [SEP] ▁h ▁i ▁j [CLS]",
    ),
    "llama3": (  # which begins the second text as the first, and so needs no other delimiter
        llama3,
        "<|begin_of_text|> a Ġb [CLS]",
        "<|begin_of_text|> a Ġb <|begin_of_text|> g [CLS]",
        None,
        "<|begin_of_text|> a Ġb Ġc <|begin_of_text|> g Ġh [CLS]",
        "<|begin_of_text|> Ġd Ġe Ġf <|begin_of_text|> Ġi Ġj [CLS]",
    ),
    "qwen": (
        qwen,
        "a Ġb [CLS]",
        "a Ġb [SEP] g [CLS]",
        None,
        "a Ġb Ġc [SEP] g Ġh Ġi [CLS]",
        "Ġd Ġe Ġf [SEP] Ġh Ġi Ġj [CLS]",
    ),
    "gemma3": (
        gemma3,
        "a Ġb [CLS]",
        "a Ġb [SEP] g [CLS]",
        None,
        "a Ġb Ġc [SEP] g Ġh Ġi [CLS]",
        "Ġd Ġe Ġf [SEP] Ġh Ġi Ġj [CLS]",
    ),
}
